"""Early stopping: a run ends when its ranking score has not improved for some evaluations."""

from __future__ import annotations

import math
from typing import Any

from overt.checkpoint.plain_values import is_count, is_number
from overt.config.schema import CheckpointSection
from overt.errors import CheckpointError, ConfigError


class Patience:
    """Counts evaluations without a better score."""

    def __init__(self, limit: int | None, checkpoint: CheckpointSection) -> None:
        if limit is not None and checkpoint.metric_name is None:
            raise ConfigError(
                f"training.patience={limit} needs checkpoint.metric_name: the score to improve"
            )
        self.limit, self.name, self.mode = limit, checkpoint.metric_name, checkpoint.mode
        self.best: float | None = None
        self.waited = 0
        self.ended = False  # the run

    def see(self, scores: dict[str, float]) -> str | None:
        """Take the scores of an evaluation; return why the run is finished, or None."""
        if self.limit is None or self.name is None or self.name not in scores:
            return None
        score = scores[self.name]
        if not math.isnan(score) and (self.best is None or self._is_better(score, self.best)):
            self.best, self.waited = score, 0
            return None
        self.waited += 1
        if self.waited < self.limit:
            return None
        self.ended = True
        return (
            f"{self.name} has not improved for {self.waited} evaluations (training.patience); the "
            f"best is {self.best if self.best is not None else math.nan:.6g}"
        )

    def _is_better(self, score: float, best: float) -> bool:
        return score < best if self.mode == "min" else score > best

    def continues(self) -> bool:
        """Return whether a run that patience has ended continues: with more patience, or none."""
        if not self.ended or (self.limit is not None and self.waited >= self.limit):
            return False
        self.ended = False
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "mode": self.mode,
            "best": self.best,
            "waited": self.waited,
            "ended": self.ended,
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Undo `state_dict`; older checkpoints have none."""
        if state is not None:
            best, waited = state["best"], state["waited"]
            if not is_count(waited) or not (best is None or is_number(best)):
                raise CheckpointError(f"state.json: patience={state!r} is not a score and a count")
            self.ended = state.get("ended", False)
            # Another score starts a new count; older states do not say which theirs was.
            own = {"name": self.name, "mode": self.mode}
            if all(state.get(key, value) == value for key, value in own.items()):
                self.best, self.waited = best, waited
