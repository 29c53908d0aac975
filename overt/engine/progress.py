"""What a run has done since its last log line: sums, speeds, spikes and slow ranks."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from overt.config import Config
from overt.distributed import World, gather_objects
from overt.engine.guard import Verdict
from overt.engine.interval import Interval
from overt.engine.loader import StepBatch
from overt.engine.precision import memory_in_use
from overt.engine.replay import Replay
from overt.engine.spikes import SpikeWatch
from overt.health.observe import Observer
from overt.health.pace import Meter, Pace, StragglerWatch
from overt.progress import told_to
from overt.recipe import StepOutput
from overt.run.events import SlowRank
from overt.run.session import LogLine, Run


class Progress:
    """Gathers numbers without waiting for the device; `read` reduces them over the ranks."""

    def __init__(
        self,
        config: Config,
        world: World,
        total_steps: int,
        run: Run,
    ) -> None:
        self.device, self.precision = world.device, config.training.precision
        self.interval, self.spikes = Interval(self.device), SpikeWatch(config.training, self.device)
        self.console = run.console
        self.pace, self.meter, self.stragglers = Pace(self.device), Meter(), StragglerWatch()
        self.observer = Observer(config.logging, total_steps, run.log_histograms)
        # Of every rank, for messages.
        self.hosts = [] if run.silent else gather_objects(socket.gethostname())

    def add_step(
        self,
        step: int,
        batch: StepBatch,
        outputs: list[StepOutput],
        applied: Tensor,
        grad_norm: Tensor,
    ) -> None:
        """Add a step that is done; its numbers stay on the device."""
        self.console.tick(step)
        self.interval.add(outputs, applied, grad_norm)
        self.meter.step(batch.samples, batch.wait_seconds)
        self.pace.add_step(batch.wait_seconds)

    def see_gradients(self, model: nn.Module, step: int) -> None:
        """Measure the gradients of `step`, complete and not yet clipped."""
        if self.observer.has_histograms(step):
            with self.meter.pause():
                self.observer.see_gradients(model, step)
        else:
            self.observer.see_gradients(model, step)

    @contextmanager
    def pause(self, look_up: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Exclude evaluation and saving from the speeds, and show their progress.

        They call `look_up` whenever they have advanced.
        """

        def working(label: str, done: int, total: int) -> None:
            self.console.working(label, done, total)
            look_up()

        with self.meter.pause(), told_to(working):
            yield

    def read(self, step: int, epoch: float, learning_rate: float, skipped: int) -> LogLine:
        """Return what is to be logged after `step`. One reduction; every rank must call this."""
        totals, rates = self.interval.totals(self.pace.read()), self.meter.read()
        self.interval.reset()
        numbers = {**totals.means(), "lr": learning_rate, "epoch": epoch}
        memory = memory_in_use(self.device)
        numbers |= {"skipped_steps": skipped, "memory_gib": memory / 2**30}
        if math.isfinite(rates.seconds_per_step):  # the first steps do not count
            numbers |= rates._asdict()
        numbers = {f"train/{name}": value for name, value in numbers.items()}
        numbers |= self.observer.numbers(rates.seconds_per_step, self.device, self.precision)
        return LogLine(
            step=step,
            epoch=epoch,
            shown={"loss": numbers["train/loss"], "lr": learning_rate},
            rates=rates,
            memory_bytes=memory,
            numbers=numbers,
            spikes=self.spikes.add(totals.losses, step - 1),
            slow=self._slow_rank(step, totals.rank_timings, rates.seconds_per_step),
        )

    def _slow_rank(
        self, step: int, timings: Sequence[Sequence[float]], seconds_per_step: float
    ) -> SlowRank | None:
        if len(timings) == 1 or not math.isfinite(seconds_per_step):
            return None
        slow = self.stragglers.notice(timings, seconds_per_step)
        return None if slow is None else SlowRank(step, self.hosts[slow.rank], *slow)

    def count_flops(self, replay: Replay, last_step: Verdict | None) -> None:
        """Count the FLOPs of a step, once, where `logging.model_flops` asks for them."""
        if self.observer.wants_flops and last_step is not None:
            with self.pause():
                self.observer.flops = replay.flops(last_step)
            if self.device.type == "cuda":  # the memory of this pass is not the run's
                torch.cuda.reset_peak_memory_stats(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers since the last log line. Every rank must call this."""
        return {"interval": self.interval.state_dict(), "spikes": self.spikes.state_dict()}

    def load_state_dict(self, state: dict[str, Any], world: World) -> None:
        self.interval.load_state_dict(state["interval"], world)
        self.spikes.load_state_dict(state.get("spikes", []))
