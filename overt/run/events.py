"""What can happen to a run, as values: the engine creates them, `run.Run` formats and writes them.

`kind` and `fields()` go to events.jsonl, `str(event)` to the console.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from overt.health.phases import Phases


class Event(Protocol):
    kind: ClassVar[str]

    def fields(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class SkippedStep:
    """A step that made no update, because its loss or gradient was non-finite or a spike."""

    step: int
    own_loss: float  # of this rank
    samples: list[tuple[int, int]]  # (epoch, index) of this rank's samples
    module: str | None  # the first that produced NaN or Inf, where it was searched for
    searched: bool
    spike_limit: float | None  # None: non-finite
    kind: ClassVar[str] = "skipped_step"

    @property
    def is_spike(self) -> bool:
        return self.spike_limit is not None

    def fields(self) -> dict[str, Any]:
        return {"step": self.step, "module": self.module, "spike": self.is_spike}

    def __str__(self) -> str:
        reason = (
            "its loss or gradient is non-finite (NaN or Inf)"
            if self.spike_limit is None
            else f"its loss is a spike, above {self.spike_limit:.4g}"
        )
        message = f"step {self.step} was skipped: {reason} (loss of this rank: {self.own_loss:g})."
        if self.spike_limit is not None:
            return f"{message} training.loss_spike sets what happens to spikes."
        if self.module is not None:
            return f"{message} NaN or Inf first appeared in: {self.module}."
        if self.searched:
            return f"{message} In a replay everything was finite (loss scale or dropout differed)."
        return f"{message} training.name_nonfinite_module=true names the module that produced it."


@dataclass(frozen=True)
class NonFiniteWeights:
    """Weights that hold NaN or Inf although every gradient was finite."""

    step: int
    tensors: list[str]
    kind: ClassVar[str] = "nonfinite_weights"

    def fields(self) -> dict[str, Any]:
        return {"step": self.step, "tensors": self.tensors[:8], "count": len(self.tensors)}


@dataclass(frozen=True)
class LossSpike:
    """A step whose loss was far above those before it."""

    step: int
    loss: float
    limit: float
    kind: ClassVar[str] = "loss_spike"

    def fields(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    step: int
    host: str
    rank: int
    part: str
    seconds: float  # its own, per step
    usual: float  # the median of all ranks
    kind: ClassVar[str] = "straggler"

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.host} holds up the others: {self.seconds:.3g} s per step "
            f"{self.part}, the others {self.usual:.3g} s"
        )


@dataclass(frozen=True)
class Started:
    """The first step is done: what the time until then was spent on."""

    step: int
    seconds: dict[str, float]
    summary: str
    kind: ClassVar[str] = "started"

    @classmethod
    def after(cls, phases: Phases, step: int) -> Started:
        """Close the phases of a start with its first step."""
        phases.end("first step")
        phases.told = True
        return cls(step, phases.seconds, str(phases))

    def fields(self) -> dict[str, Any]:
        return {"step": self.step, **self.seconds}

    def __str__(self) -> str:
        return self.summary


@dataclass(frozen=True)
class SpeedChosen:
    """What `training.compile=auto` and `training.cuda_graph=auto` resolve to, and why."""

    step: int
    compile: str
    cuda_graph: bool
    reason: str
    kind: ClassVar[str] = "speed"

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"auto: {self.reason}"


@dataclass(frozen=True)
class SpeedGivenUp:
    """What `auto` chose does not work here; the run continues without it."""

    step: int
    key: str
    value: str  # from now on
    problem: str
    kind: ClassVar[str] = "speed_given_up"

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"auto: {self.key} does not work here ({self.problem}); training continues with "
            f"{self.key}={self.value}, and no step is lost. Set {self.key}={self.value} to skip "
            "the attempt"
        )


@dataclass(frozen=True)
class Finished:
    """Training ended before its last step, on purpose."""

    step: int
    reason: str
    kind: ClassVar[str] = "finished"

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"finished at step {self.step}: {self.reason}"


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete on disk."""

    step: int | None
    name: str  # of its folder
    kind: ClassVar[str] = "saved"

    def fields(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StopRequested:
    """A signal asked the run to stop."""

    step: int
    total_steps: int
    signal: str
    kind: ClassVar[str] = "preempted"

    def fields(self) -> dict[str, Any]:
        return {"step": self.step, "signal": self.signal}


@dataclass(frozen=True)
class LostPeer:
    """Another process, or the link to it, is gone."""

    step: int
    error: str
    kind: ClassVar[str] = "lost_peer"

    def fields(self) -> dict[str, Any]:
        return asdict(self)
