"""Where a run stands: the few numbers that a trainer moves on, and a checkpoint brings back."""

from __future__ import annotations

from dataclasses import dataclass, field

from overt.engine.loader import START, Position


@dataclass
class State:
    """Where the run stands. `step` is the one clock: global batches consumed."""

    step: int = 0
    position: Position = START  # in the order of the data
    skipped: int = 0  # steps that made no update
    skipped_in_a_row: int = 0
    scores: dict[str, float] = field(default_factory=dict)  # of the evaluation at this step
    evaluated_step: int = 0
    wandb_run_id: str | None = None

    @property
    def updates(self) -> int:
        """Updates made: what schedules count, so that a skipped step does not move them."""
        return self.step - self.skipped
