"""Decide whether a run resumes, and refuse to resume with different settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overt.checkpoint import plain_values, storage
from overt.config import Config, defaults_of, differences
from overt.distributed import broadcast_object, is_main_process
from overt.errors import CheckpointError, ConfigError
from overt.run.folder import RunPaths
from overt.run.reader import read_rows

# Settings that may change between two sessions of a run without changing what it computes.
FREE_TO_CHANGE = (
    "exp_name",
    "output_dir",
    "logging",
    "checkpoint",
    "evaluation",
    "data.root",
    "training.batch_size",  # the global batch is compared on its own
    "training.global_batch_size",
    "training.accumulation_steps",
    "training.num_workers",
    "training.device",
    "training.strategy",
    "training.reduce_every_micro_batch",
    "training.evaluate_every_steps",
    "training.evaluate_sets",
    "training.evaluate_at_start",
    "training.patience",
    "training.nonfinite",
    "training.max_skipped_in_a_row",
    "training.name_nonfinite_module",
    "training.loss_spike",
    "training.loss_spike_deviations",
    "training.loss_spike_window",
    "training.timeout_minutes",
    "training.profile_steps",
    "training.memory_snapshot",
    "training.hang_minutes",
    "training.hang",
)


def has_to_resume(config: Config) -> bool:
    """Decide whether this run continues from a checkpoint: the main rank decides for all."""
    names: list[str] = []
    lost: str | None = None
    if is_main_process():
        paths = RunPaths(config.run_dir)
        stored, broken = storage.scan(paths.checkpoints)
        others = [*broken, *storage.copies(paths.checkpoints)]  # the manager renames copies
        names = [entry.path.name for entry in stored] + [path.name for path in others]
        lost = None if names else _lost_checkpoint(paths)
    names, lost = broadcast_object((names, lost))
    if lost is not None and config.checkpoint.resume in ("auto", "never"):
        raise CheckpointError(
            f"the run {config.run_dir} has held checkpoints ({lost}), of which none is usable; it "
            "does not start from scratch by itself. Restore a checkpoint, name one elsewhere "
            "(checkpoint.resume=FOLDER), choose another exp_name, or remove the run folder."
        )
    if config.checkpoint.resume == "never" and names:
        raise CheckpointError(
            f"checkpoint.resume=never, but the run {config.run_dir} already has {names[-1]}; "
            "choose another exp_name, remove that folder, or use checkpoint.resume=auto"
        )
    return config.checkpoint.resume != "never" and (
        bool(names) or config.checkpoint.resume != "auto"
    )


def named_checkpoint(config: Config, say: Callable[[str], None]) -> str | None:
    """Return the path to resume from; None stands for the newest checkpoint of the run itself.

    A run that has been resumed from the path before continues: the same command, started again
    after a preemption, must not go back. Every rank must call this.
    """
    if config.checkpoint.resume == "auto":
        return None
    named = os.path.abspath(config.checkpoint.resume)
    newest: Path | None = None
    problem: OSError | None = None
    if is_main_process():
        try:
            newest = _newest_resumed_from(named, RunPaths(config.run_dir).checkpoints)
        except OSError as error:  # raised on every rank, or the others would wait forever
            problem = error
    newest, problem = broadcast_object((newest, problem))
    if problem is not None:
        raise CheckpointError(f"{config.run_dir}: the newest checkpoint is unreadable: {problem}")
    if newest is None:
        return named
    say(
        f"the run was resumed from {config.checkpoint.resume} before: it continues from its newest "
        f"checkpoint, {newest.name}. To go back again, choose another exp_name, or remove the "
        "checkpoints saved since"
    )
    return None


def _newest_resumed_from(named: str, folder: Path) -> Path | None:
    """Return the newest good checkpoint of a folder, if its run was last resumed from `named`."""
    stored, _ = storage.scan(folder)
    if all(_resumed_from(checkpoint.path) != named for checkpoint in stored):
        return None
    newest = storage.newest_good(folder)
    return None if newest is None or _resumed_from(newest) != named else newest


def _resumed_from(checkpoint: Path) -> str | None:
    try:
        state = plain_values.decode((checkpoint / "state.json").read_bytes())["state"]
        origin: str | None = state.get("resumed_from")
    except (CheckpointError, OSError, LookupError, TypeError, AttributeError):  # it is damaged
        return None
    return origin


def _lost_checkpoint(paths: RunPaths) -> str | None:
    """Name a checkpoint that the run folder once held: moved aside as broken, or on record."""
    if paths.checkpoints.is_dir():
        aside = sorted(path.name for path in paths.checkpoints.glob("*_*.broken*"))
        if aside:
            return aside[-1]
    saved = [row for row in read_rows(paths.events) if row.get("kind") == "saved"]
    return str(saved[-1].get("name")) if saved else None


def is_longer(before: str, after: str) -> bool:
    """Return whether the second of two configurations gives a run more steps or epochs."""
    return any(
        key in ("training.num_steps", "training.num_epochs") and old and new and new > old
        for key, old, new in differences(before, after, ())
    )


def refuse_other_run(
    config: Config, saved: dict[str, Any], samples: int, global_batch_size: int
) -> None:
    """Refuse a checkpoint of other settings, data or batch than this run has."""
    state, confirmed = saved["state"], tuple(config.checkpoint.accept_changes)
    if saved["config_yaml"] is None:
        raise CheckpointError(f"{saved['path']} has no config.yaml, so nothing can be compared")
    accepted = (*FREE_TO_CHANGE, *confirmed)
    changes = {
        key: f"{key}: {before} -> {after}"
        for key, before, after in differences(
            saved["config_yaml"], config.text, accepted, defaults_of(config.settings)
        )
    }
    for key, name, current in (
        ("data", "samples", samples),
        ("training.global_batch_size", "global_batch_size", global_batch_size),
    ):
        if state[name] != current and key not in confirmed:
            changes[key] = f"{key}: {name.replace('_', ' ')} {state[name]} -> {current}"
    if changes:
        raise ConfigError(
            f"{saved['path']} was made with other settings:\n  "
            + "\n  ".join(changes.values())
            + "\nChoose another exp_name for a new run, or confirm the change to this run with\n  "
            f"'checkpoint.accept_changes=[{','.join(changes)}]'"
        )
