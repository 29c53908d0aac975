"""`Run`: everything that one session of a run writes, on console and disk.

The engine hands over values and events; this decides on wording and files.
"""

from __future__ import annotations

import logging
import math
import shlex
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from torch import nn

from overt.checkpoint.manifest import Stored
from overt.config import Config, import_target
from overt.distributed import World, is_main_process, main_first
from overt.errors import LaunchError
from overt.files.yaml_text import own_values
from overt.health.pace import Rates
from overt.run import messages
from overt.run.console import Console
from overt.run.events import Event, LossSpike, Saved, SkippedStep, SlowRank
from overt.run.folder import RunPaths
from overt.run.lock import RunLock
from overt.run.log import MetricsLogger
from overt.run.messages import Introduction, score_table
from overt.run.reader import number_of, read_rows
from overt.run.trackers import TrackerMaker, append_line, replace_file
from overt.run.warning_file import WarningFile

logger = logging.getLogger(__name__)

P = ParamSpec("P")


@dataclass(frozen=True)
class LogLine:
    """One log line: metrics since the last line, and their spikes."""

    step: int
    epoch: float
    shown: dict[str, float]  # on the console
    rates: Rates
    memory_bytes: int
    numbers: dict[str, float]
    spikes: Sequence[LossSpike]
    slow: SlowRank | None


class Run:
    """Console, warnings, metrics and events of a run; only skipped samples are written by all."""

    def __init__(self, config: Config, world: World, silent: bool = False) -> None:
        """`silent`: nothing is printed or written."""
        self.config, self.world, self.silent = config, world, silent
        self.paths = RunPaths(config.run_dir)
        self.console = Console(enabled=world.is_main and not silent)
        self.logger = MetricsLogger(config.exp_name, config.run_dir, inactive=True)
        self._best: float | None = None  # of the ranking metric
        # Warnings do not break the progress lines, and every rank writes its own file.
        warnings = WarningFile(self.paths.warnings_of(world.rank))
        self._handlers = [] if silent else [self.console.handler(), warnings]
        for handler in self._handlers:
            logging.getLogger("overt").addHandler(handler)
        self.lock, self._owns_lock = Held(None), False

    def take_lock(self, lock: Held | None) -> None:
        """Hold the run folder until `close`, unless the caller holds it; every rank calls this."""
        if lock is not None:
            self.lock = lock
        elif not self.silent:
            self.lock, self._owns_lock = hold(self.paths.root), True
            weakref.finalize(self, self.lock.release)  # a trainer that is built and never closed

    def open(self, resume_step: int | None, wandb_run_id: str | None) -> MetricsLogger:
        """Create the folder, write configuration and command, open and return the trackers."""
        if self.silent:
            return self.logger
        config = self.config
        main_first(self._write_description)
        values = own_values(config.text)
        assert isinstance(values, dict)
        self.logger = MetricsLogger(
            config.exp_name,
            config.run_dir,
            {str(key): value for key, value in values.items()},
            use_wandb=config.logging.use_wandb,
            use_tensorboard=config.logging.use_tensorboard,
            wandb_project=config.logging.wandb_project,
            wandb_tags=config.logging.wandb_tags,
            wandb_entity=config.logging.wandb_entity,
            wandb_mode=config.logging.wandb_mode,
            wandb_run_id=wandb_run_id,
            resume_step=resume_step,
            trackers=[make_tracker(entry) for entry in config.logging.trackers],
        )
        if resume_step is not None and self.world.is_main:
            self._read_best()
        return self.logger

    def _write_description(self) -> None:
        if not self.world.is_main:
            return
        with explained(self.paths.root):
            self.paths.root.mkdir(parents=True, exist_ok=True)
            # Replaced, never truncated: a full disk leaves the previous configuration.
            replace_file(self.paths.config, self.config.text.encode())
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shlex.join(sys.argv)}\n"
            with self.paths.command.open("a", encoding="utf-8", errors="replace") as file:
                file.write(line)

    def _read_best(self) -> None:
        """Find the best score of earlier sessions; steps that come again are no longer logged."""
        name = f"evaluation/{self.config.checkpoint.metric_name}"
        with suppress(OSError):  # it is shown and decides nothing
            for row in read_rows(self.paths.metrics):
                self._see_score(number_of(row.get(name)))

    def _see_score(self, value: float | None) -> None:
        if value is None or math.isnan(value):
            return
        sign = 1 if self.config.checkpoint.mode == "max" else -1
        if self._best is None or sign * value > sign * self._best:
            self._best = value

    def introduce(self, make: Callable[[], Introduction]) -> None:
        """Print what is about to happen."""
        if self.silent:
            return
        introduction = make()
        self.console.table("overt", introduction.rows())
        for remark in introduction.remarks():
            self.console.say(remark)

    def record(self, event: Event) -> None:
        """Write an event to events.jsonl, and print it if it has a text."""
        if isinstance(event, SkippedStep):
            self._write_samples(event)
        self.logger.log_event(event.kind, **event.fields())
        if type(event).__str__ is not object.__str__:
            self.console.say(str(event))

    def record_saved(self, stored: Stored) -> None:
        """Record a checkpoint that is complete: from now on the run never starts from scratch."""
        self.record(Saved(stored.manifest.get("step"), stored.path.name))

    def record_spikes(self, spikes: Sequence[LossSpike]) -> None:
        """Write every spike, and print the highest."""
        for spike in spikes:
            self.logger.log_event(spike.kind, **spike.fields())
        if spikes:
            worst = max(spikes, key=lambda spike: spike.loss)
            self.console.say(
                f"the loss of {len(spikes)} step(s) since the last log line is a spike, the "
                f"largest at step {worst.step}: {worst.loss:.4g}, above the limit of "
                f"{worst.limit:.4g} (training.loss_spike; all are in events.jsonl)"
            )

    def write_line(self, line: LogLine) -> None:
        """Log the numbers of an interval and show where training stands."""
        self.record_spikes(line.spikes)
        if line.slow is not None:
            self.record(line.slow)
        self.console.update(
            line.step,
            line.epoch,
            line.shown,
            memory_bytes=line.memory_bytes,
            **line.rates._asdict(),
        )
        system = self.logger.system_metrics() if self.config.logging.system_metrics else {}
        self.logger.log_metrics(line.numbers | system, line.step)

    def write_scores(self, scores: dict[str, float], step: int) -> None:
        """Log the scores of an evaluation and print them."""
        self.logger.log_metrics(scores, step, prefix="evaluation")
        checkpoint = self.config.checkpoint
        value = scores.get(checkpoint.metric_name or "", math.nan)
        self._see_score(value)
        if not math.isnan(value):
            text = f"{checkpoint.metric_name} {value:.4g} (best {self._best:.4g})"
            self.console.keep_score(text)
        warn_of_unknown(self.config, scores)
        if not scores and checkpoint.metric_name is not None:
            logger.warning(
                "the evaluation at step %d returned no scores, so checkpoint.metric_name=%s ranks "
                "no checkpoint; check that its data set is not empty",
                step,
                checkpoint.metric_name,
            )
            return
        self.console.say(score_table(step, scores, checkpoint.metric_name))

    def conclude(self, step: int, total_steps: int, best: Path | None, value: float | None) -> None:
        """Print what was reached, where the best checkpoint is and what to type next."""
        self.console.close()
        self.console.table(*messages.conclusion(self.config, step, total_steps, best, value))

    def log_histograms(self, model: nn.Module, step: int) -> None:
        """Log gradients and weights; every rank must call this for a sharded model."""
        self.logger.log_model_gradients(model, step)
        self.logger.log_model_weights(model, step)

    def close(self, exit_code: int, step: int | None = None) -> None:
        """End console, handlers and trackers; `step` is the last one made."""
        self.console.close()
        for handler in self._handlers:
            logging.getLogger("overt").removeHandler(handler)
        self.logger.finish(exit_code, step)
        self.let_go()

    def let_go(self) -> None:
        """Give the run folder back, where this session took it."""
        if self._owns_lock:
            self.lock.release()

    def _write_samples(self, event: SkippedStep) -> None:
        path = self.paths.skipped_by(self.world.rank)
        row = {
            "step": event.step,
            "loss": repr(event.own_loss),
            "first_nonfinite_module": event.module,
            "samples": [{"epoch": epoch, "index": index} for epoch, index in event.samples],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_line(path, row)
        except OSError as error:  # a log that cannot be written stops no training
            logger.warning(
                "the %d samples of the skipped step %d could not be written to %s (%s); epoch and "
                "index of the first ones: %s",
                len(event.samples),
                event.step,
                path,
                error,
                event.samples[:10],
            )


def lets_go_on_failure(build: Callable[Concatenate[Any, P], None]) -> Callable[..., None]:
    """Wrap the `__init__` of an owner of a `run`: one that fails leaves its folder to others."""

    @wraps(build)
    def building(owner: Any, *arguments: P.args, **options: P.kwargs) -> None:
        try:
            build(owner, *arguments, **options)
        except BaseException:
            if isinstance(run := getattr(owner, "run", None), Run):
                run.let_go()
            raise

    return building


@dataclass(frozen=True)
class Held:
    """A run folder that this process group holds; the main rank has the lock itself."""

    lock: RunLock | None

    def check(self) -> None:
        """Refuse to write where another start has taken the run over."""
        if self.lock is not None:
            self.lock.check()

    def release(self) -> None:
        """Let the next start have the folder."""
        if self.lock is not None:
            with suppress(OSError):  # the next start sees that this process has ended
                self.lock.release()


def hold(folder: Path) -> Held:
    """Hold the run folder for this process group; every rank must call this.

    Refused on every rank while another process group trains there.
    """
    lock = RunLock(RunPaths(folder).lock) if is_main_process() else None

    def acquire() -> None:
        assert lock is not None
        with explained(folder):
            lock.acquire()

    main_first(acquire)
    return Held(lock)


@contextmanager
def locked(folder: Path) -> Iterator[Held]:
    """Hold the run folder within the context."""
    held = hold(folder)
    try:
        yield held
    finally:
        held.release()


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Explain a run folder that cannot be written to."""
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"the run folder {folder} cannot be written to: {error.strerror or error}. Free space "
            "there, check its permissions, or choose another output_dir."
        ) from error


# Trackers that have moved: stored configurations name them by where they were.
MOVED = {"overt.engine.mlflow_tracker.MLflow": "overt.run.mlflow_tracker.MLflow"}


def make_tracker(entry: dict[str, Any]) -> TrackerMaker:
    """Return the class that an entry of `logging.trackers` names, with its arguments."""
    arguments = {key: value for key, value in entry.items() if key != "_target_"}
    target = MOVED.get(entry["_target_"], entry["_target_"])
    return partial(import_target("logging.trackers", target), **arguments)


def ranks_checkpoints(
    metric_name: str | None, scores: dict[str, float], set_of: Callable[[str], str] = lambda _: ""
) -> bool:
    """Return whether the scores hold the ranking metric; a wrong name costs no progress.

    `set_of` names the evaluation set of a score: where another set was due, nothing is missing.
    """
    if metric_name is not None and _is_missing(metric_name, scores, set_of):
        logger.warning(
            "checkpoint.metric_name=%s is not among the scores (%s): no checkpoint is called best, "
            "and training.patience does not count",
            metric_name,
            ", ".join(scores),
        )
    return metric_name is not None and metric_name in scores


def warn_of_unknown(config: Config, scores: dict[str, float]) -> None:
    """Warn of metrics in `checkpoint.also_best` that these scores should hold and do not."""

    def set_of(score: str) -> str:
        # All sets are due together except those with a separate interval.
        name = score.partition("/")[0]
        return name if "/" in score and name in config.training.evaluate_sets else ""

    for name in config.checkpoint.also_best:
        if _is_missing(name, scores, set_of):
            logger.warning(
                "checkpoint.also_best=%s is not among the scores (%s): no checkpoint is called "
                "best by it",
                name,
                ", ".join(scores),
            )


def _is_missing(name: str, scores: dict[str, float], set_of: Callable[[str], str]) -> bool:
    return name not in scores and set_of(name) in map(set_of, scores)
