"""Longer messages of a run: its summary at the start, and what to do when it ends early."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from overt.config import Config
from overt.config.batch import BatchPlan, advice, learning_rates
from overt.config.plugins import installed_packages
from overt.run.events import LostPeer, NonFiniteWeights, SkippedStep, StopRequested
from overt.terminal import columns

# Prefixes of the scores of baselines that need no training.
BASELINES = (
    "static", "random", "untrained", "initial", "pixels", "pixel", "mean", "constant", "copy",
    "nearest", "chance", "majority", "zero", "identity", "baseline",
)  # fmt: skip
FEW = 3  # scores that one line takes
SMALLEST_FAMILY = 3


@dataclass(frozen=True)
class Introduction:
    """The summary that is printed at the start of a run."""

    config: Config
    plan: BatchPlan
    device_name: str
    parameters: int
    trained_parameters: int
    samples: int
    steps_per_epoch: int
    total_steps: int
    optimizers: dict[str, int]  # parameters of each class
    learning_rate: float
    schedule: str
    loaded: str | None  # which tensors checkpoint.init_from has filled
    slow: str | None  # why the precision is a bad choice for the device
    resumed: str | None
    done: str | None  # why nothing is left to train
    step: int = 0  # that this session continues from

    def rows(self) -> list[tuple[str, str]]:
        config, plan, optimizer = self.config, self.plan, self.config.optimizer
        trained = self.trained_parameters
        rule = optimizer.lr_scaling
        scaled = f" ({rule} scaling of {optimizer.lr:g} from batch {optimizer.lr_base_batch})"
        rates = learning_rates(optimizer, plan.global_batch_size)
        rows = [
            ("run", str(config.run_dir)),
            ("recipe", config.recipe.name),
            (
                "parameters",
                f"{self.parameters:,}"
                + ("" if trained == self.parameters else f", {trained:,} trained"),
            ),
            (
                "processes",
                f"{plan.world_size} on {self.device_name}, {config.training.precision}",
            ),
            ("data", f"{self.samples:,} samples, {self.steps_per_epoch:,} steps per epoch"),
            (
                "global batch",
                f"{plan.batch_size} per process x {plan.world_size} process(es) x "
                f"{plan.accumulation_steps} accumulated = {plan.global_batch_size}",
            ),
            (
                "steps",
                f"{self.total_steps:,} ({self.total_steps / self.steps_per_epoch:.4g} epochs)",
            ),
            ("learning rate", f"{self.learning_rate:g}{'' if rule == 'none' else scaled}"),
        ]
        if len(rates) > 1:
            by_rule = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
            rows.append(("by each rule", by_rule))
        if len(self.optimizers) > 1:
            parts = [f"{name} for {count:,}" for name, count in self.optimizers.items()]
            rows.append(("optimizers", ", ".join(parts) + " parameters"))
        rows.append(("schedule", self.schedule))
        if self.resumed is not None:
            rows.append(("resumed", self.resumed))
        return rows

    def remarks(self) -> list[str]:
        """Return the lines below the table."""
        hint = advice(self.config.training, self.config.optimizer, self.plan)
        return [
            *([] if self.loaded is None else [self.loaded]),
            *([] if self.slow is None else [f"slow: {self.slow}"]),
            *([] if hint is None else [f"advice: {hint}"]),
            *([] if self.done is None else [f"nothing is left to train: {self.done}"]),
            *self._unrecorded(),
        ]

    def _unrecorded(self) -> list[str]:
        """Tell of steps to profile that this session does not come by."""
        steps = self.config.training.profile_steps
        if steps is None or self.done is not None:
            return []
        if steps[0] <= self.total_steps and steps[1] > self.step:
            return []
        return [
            f"training.profile_steps=[{steps[0]},{steps[1]}] records nothing: this session trains "
            f"steps {self.step + 1} to {self.total_steps}"
        ]


def stopped_by_nonfinite(event: SkippedStep, in_a_row: int) -> str:
    return (
        f"{event} {in_a_row} step(s) in a row; the weights are those before it and have been "
        "saved. Try a lower learning rate, gradient clipping (training.grad_clip_norm) or "
        "training.precision=fp32."
    )


def nonfinite_weights(event: NonFiniteWeights, newest: Path | None) -> str:
    names = ", ".join(event.tensors[:5]) + (" ..." if len(event.tensors) > 5 else "")
    checkpoint_note = (
        "no checkpoint exists yet" if newest is None else f"the newest good checkpoint is {newest}"
    )
    return (
        f"at step {event.step} the weights hold NaN or Inf, or numbers beyond 1e18 that lead there "
        f"({len(event.tensors)} tensor(s): {names}), so they are not saved; {checkpoint_note}. "
        "The gradients were finite: the update was not. Lower optimizer.lr, raise "
        "optimizer.arguments.eps, or clip the gradient (training.grad_clip_norm), and "
        "resume from there."
    )


def stopped_by_signal(event: StopRequested, checkpoints: Path) -> str:
    return (
        f"{event.signal} asked this run to stop: step {event.step} of {event.total_steps} is saved "
        f"in {checkpoints}; the same command resumes from there"
    )


def lost_peer(event: LostPeer, rank: int, timeout_minutes: float) -> str:
    return (
        f"rank {rank} at step {event.step}: another process, or the link to it, is gone "
        f"({event.error}). Ranks wait for each other up to training.timeout_minutes="
        f"{timeout_minutes:g}. Saved checkpoints are complete: check the output of the other "
        "ranks, fix the cause, and the same command resumes from the last checkpoint."
    )


def score_table(step: int, scores: Mapping[str, float], metric_name: str | None = None) -> str:
    """Return scores as a small table with baselines beside them; few scores are one line."""
    has_baselines = any(baseline_of(name, scores) for name in scores)
    if len(families_of(list(scores))) <= FEW and not has_baselines:
        texts = (f"{name} {value:.4g}" for name, value in scores.items())
        return f"step {step}: " + ", ".join(texts)
    return aligned_scores(f"step {step}", scores, metric_name)


def aligned_scores(title: str, scores: Mapping[str, float], metric_name: str | None = None) -> str:
    """Return scores in rows, baselines in further columns, the ranking metric marked."""
    baselines = sorted({prefix for name in scores if (prefix := baseline_of(name, scores))})
    rows, series = [], []
    for family, names in families_of([n for n in scores if not baseline_of(n, scores)]).items():
        mark = " *" if metric_name in names else ""
        values = [f"{scores[name]:.4g}" for name in names]
        if len(values) > 1:  # would widen the column of scores
            series.append([f"  {family}{mark}", " ".join(values)])
        else:
            beside = [_beside(prefix, names[0], scores) for prefix in baselines]
            rows.append([f"  {family}{mark}", *values, *beside])
    heading = [title, "score", *baselines]
    lines = columns([heading, *rows], right=range(1, 2 + len(baselines)))
    return "\n".join([*lines, *columns(series)])


def baseline_of(name: str, scores: Mapping[str, float]) -> str | None:
    """Return the baseline that a score is of, where the same score of the model is there too."""
    group, slash, metric_name = name.rpartition("/")
    for prefix in BASELINES:
        base_name = metric_name.removeprefix(f"{prefix}_")
        if base_name != metric_name and f"{group}{slash}{base_name}" in scores:
            return prefix
    return None


def _beside(prefix: str, name: str, scores: Mapping[str, float]) -> str:
    group, slash, metric_name = name.rpartition("/")
    value = scores.get(f"{group}{slash}{prefix}_{metric_name}")
    return "" if value is None else f"{value:.4g}"


def families_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Gather scores that differ by a number at their end, such as a threshold, in one row."""
    stems: dict[str, list[str]] = {}
    for name in names:
        stem, _, end = name.rpartition("_")
        stems.setdefault(stem if stem and end.isdigit() else name, []).append(name)
    families: dict[str, list[str]] = {}
    for stem, members in stems.items():
        if len(members) < SMALLEST_FAMILY:
            families |= {name: [name] for name in members}
        else:
            members = sorted(members, key=lambda name: int(name.rpartition("_")[2]))
            ends = ", ".join(name.rpartition("_")[2] for name in members)
            families[f"{stem} at {ends}"] = members
    return families


def _package_of(config: Config) -> list[str]:
    """Return the option that names the package of the user's own recipe; none for overt's."""
    package = config.recipe._target_.partition(".")[0]
    if package == "overt" or package in installed_packages():
        return []
    spec = find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return ["--package", os.path.relpath(folders[0])] if folders else []


def conclusion(
    config: Config, step: int, total_steps: int, best: Path | None, value: float | None
) -> tuple[str, list[tuple[str, str]]]:
    """Return the closing lines of a run: what was reached, and what to type next."""
    run, name = shlex.quote(str(config.run_dir)), config.checkpoint.metric_name
    rows = [("reached", f"step {step:,} of {total_steps:,}")]
    checkpoints = config.run_dir / "checkpoints"
    checkpoint = checkpoints / ("best" if best is not None else "latest")
    if best is not None:
        score = "" if value is None else f", {name} {value:.4g}"
        rows.append(("best checkpoint", f"{checkpoint} ({best.name}{score})"))
    elif checkpoint.exists():
        rows.append(("last checkpoint", str(checkpoint)))
    if checkpoint.exists() and config.recipe_class is None:  # else no command finds the class
        words = ["overt", "evaluate", *_package_of(config), f"checkpoint={checkpoint}"]
        rows.append(("score it", shlex.join(words)))
    rows.append(("look at it", f"overt report {run}"))
    return "done", rows
