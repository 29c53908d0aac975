"""`overt stages FILE`: run training stages, each from the best checkpoint of an earlier one.

FILE is YAML. Finished stages are skipped; an interrupted one resumes where it stopped.

    output_dir: runs/blade
    stages:
      - name: depth
        recipe: blade_depthnet
        overrides: {training.batch_size: 2}
        nodes: 8
        gpus: 8
      - name: pose
        recipe: blade_posenet
        checkpoints: {model.depthnet_checkpoint: depth}     # its best; `depth latest` its last

Precedence of `overrides`, lowest to highest: those of the file, of a stage, of the command line.
Without `gpus` a stage is one process. --dry-run shows what would run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overt.config import Config, differences, load
from overt.errors import (
    INTERRUPTED_EXIT_CODE,
    PREEMPTED_EXIT_CODE,
    CheckpointError,
    ConfigError,
    Interrupted,
    LaunchError,
    OvertError,
    Preempted,
    error_of,
)
from overt.health.preemption import StopSignal
from overt.tools.launch.stages import Stage, plan, read_stages
from overt.train import run_one


@dataclass(frozen=True)
class Progress:
    """How far a stage is."""

    step: int
    total: int | None  # None: not started
    has_finished: bool = False  # before its last step, by patience or its recipe

    @property
    def is_done(self) -> bool:
        return self.has_finished or (self.total is not None and self.step >= self.total)

    def __str__(self) -> str:
        if self.total is None:
            return "not started"
        return "done" if self.is_done else f"at step {self.step} of {self.total}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt stages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="for every stage"
    )
    parser.add_argument("--output-dir", type=Path, help="overrides the file's output_dir")
    parser.add_argument("--dry-run", action="store_true", help="show what would run, run nothing")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="run every stage on N processes of this host"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what a launcher would submit, as JSON"
    )
    options = parser.parse_intermixed_args(arguments)
    stages = read_stages(options.file, options.overrides, options.output_dir)
    if options.plan:
        print(json.dumps([asdict(command) for command in plan(stages)], indent=2))
        return 0
    # All are checked before the first one starts.
    configs = [load(stage.overrides, packages=stage.packages) for stage in stages]
    for number, (stage, config) in enumerate(zip(stages, configs, strict=True), start=1):
        progress = progress_of(stage, config)
        print(f"[{number}/{len(stages)}] {stage.name}: {progress}", flush=True)
        if progress.is_done:
            continue
        if options.dry_run and stage.nodes > 1 and options.processes is None:
            print(
                f"on each of {stage.nodes} nodes:\n$ {shlex.join(node_command(stage))}", flush=True
            )
            continue
        command = local_command(stage, options.processes)
        print(f"$ {shlex.join(command)}", flush=True)
        if options.dry_run:
            continue
        check_needs(stage, stages)
        run(stage, command)
        if not progress_of(stage, config).is_done:
            raise OvertError(f"stage {stage.name} ended before its last step; see above")
    return 0


def local_command(stage: Stage, processes: int | None = None) -> list[str]:
    """Return the command that trains a stage on this host."""
    count = stage.gpus if processes is None else processes
    if processes is None and stage.nodes > 1:
        raise LaunchError(
            f"stage {stage.name} needs {stage.nodes} nodes; submit the chain to Slurm, or run it "
            "on this host alone with --processes N"
        )
    if count is None or count == 1:
        return [sys.executable, "-m", "overt.train", *stage.words]
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return [sys.executable, *start, "-m", "overt.train", *stage.words]


def node_command(stage: Stage) -> list[str]:
    """Return what each node of a stage runs, as docs/launch.md starts several."""
    size = [f"--nnodes={stage.nodes}", f"--nproc_per_node={stage.gpus or 1}"]
    meeting = ["--rdzv_backend=c10d", "--rdzv_endpoint=FIRST_HOST:29500"]
    return ["torchrun", *size, *meeting, "-m", "overt.train", *stage.words]


def run(stage: Stage, command: list[str]) -> None:
    """Train a stage in new processes; their output is shown as it comes."""
    with StopSignal() as stop:
        code = run_one(command, stop)
    if code == INTERRUPTED_EXIT_CODE:
        raise Interrupted(f"interrupted in stage {stage.name}; the same command resumes there")
    if code == PREEMPTED_EXIT_CODE or stop.name is not None:
        raise Preempted(f"asked to stop in stage {stage.name}; the same command resumes there")
    if code:
        raise error_of(code)(
            f"stage {stage.name} ended with exit code {code}; see above. The same command resumes "
            "from its last checkpoint"
        )


def check_needs(stage: Stage, stages: Sequence[Stage]) -> None:
    """Refuse to start a stage whose checkpoints do not exist."""
    folders = {candidate.name: candidate.run_dir / "checkpoints" for candidate in stages}
    for name, checkpoint_name in stage.needs:
        link = folders[name] / checkpoint_name
        if not link.exists():
            hint = ""
            if checkpoint_name == "best":
                hint = (
                    ": no checkpoint of it was measured. Set checkpoint.metric_name to one of its "
                    f"scores, and checkpoint.every_steps to a step that is evaluated; or write "
                    f"`{name} latest`"
                )
            raise CheckpointError(f"stage {stage.name} needs {link}, which is not there{hint}")


def progress_of(stage: Stage, config: Config) -> Progress:
    """Return how far a stage is, by its run folder alone; refused where that is of another run."""
    from overt.checkpoint import plain_values, storage
    from overt.engine.patience import Patience
    from overt.run.resume import FREE_TO_CHANGE, is_longer

    stored, _ = storage.scan(stage.run_dir / "checkpoints")
    if not stored:
        return Progress(0, None)
    newest = stored[-1].path
    state: dict[str, Any] = plain_values.decode((newest / "state.json").read_bytes())["state"]
    training = config.training
    total = training.num_steps
    if total is None:
        batch, samples = int(state["global_batch_size"]), int(state["samples"])
        epoch = samples // batch if training.drop_last else -(-samples // batch)
        total = (training.num_epochs or 0) * max(epoch, 1)
    patience = Patience(training.patience, config.checkpoint)
    patience.load_state_dict(state.get("patience"))
    stored_text = (newest / "config.yaml").read_text()
    continues = patience.continues() or is_longer(stored_text, config.text)
    has_finished = state.get("finished") is not None and not continues
    progress = Progress(int(state["step"]), total, has_finished)
    changes = differences(stored_text, config.text, FREE_TO_CHANGE)
    if changes and progress.is_done:
        lines = "\n  ".join(f"{key}: {before} -> {after}" for key, before, after in changes)
        raise ConfigError(
            f"stage {stage.name} is done in {stage.run_dir}, but with other settings:\n  {lines}\n"
            "Choose another output_dir, or remove that folder"
        )
    return progress
