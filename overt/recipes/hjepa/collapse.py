"""Watching for collapse in training: looks at the features now and then, warns, and may stop."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from overt.errors import StopError
from overt.metrics.collapse import TOKEN_NAMES, token_statistics
from overt.recipes.hjepa.config import CollapseSettings
from overt.recipes.hjepa.model import Output

log = logging.getLogger(__name__)

ADVICE = (
    "Features of different patches have become alike, whatever the loss says. Lower optimizer.lr "
    "or raise model.ema.momentum; model.initialization=fan_in helps narrow models, "
    "loss.type=combined or hjepa_sigreg adds a term against collapse."
)


class CollapseError(StopError):
    """The representation has collapsed and the configuration says to stop."""


class CollapseMonitor:
    """Statistics of context, target and predictions, renewed every so many steps.

    Between two looks the last numbers stand, so that a step costs nothing. A look adds up over all
    processes, so that all of them decide alike.
    """

    def __init__(self, settings: CollapseSettings) -> None:
        self.settings = settings
        self.alarms = 0  # looks in a row
        self.numbers: dict[str, Tensor] = {}

    def look(self, output: Output, step: int) -> dict[str, Tensor]:
        """The numbers of the last look; at a step that is due, of a new one."""
        every = self.settings.every_steps
        if every is None:
            return {}
        if not self.numbers or step % every == 0:
            self.numbers = self.measure(output)
            self.judge(output.context.shape[-1], step)
        return self.numbers

    @torch.no_grad()
    def measure(self, output: Output) -> dict[str, Tensor]:
        """`context_std`, `target_rank`, `prediction_h0_norm` and so on."""
        parts = {"context": output.context, "target": output.target}
        for level, (one, other) in enumerate(zip(output.predictions, output.targets, strict=True)):
            parts |= {f"prediction_h{level}": one, f"target_h{level}": other}
        return {
            f"{part}_token_{name}": value
            for part, tokens in parts.items()
            for name, value in zip(
                TOKEN_NAMES, token_statistics(self.some(tokens)).float(), strict=True
            )
        }

    def some(self, tokens: Tensor) -> Tensor:
        """Tokens spread evenly over all of them, (n, D)."""
        rows = tokens.detach().flatten(0, -2)
        return rows[:: max(1, math.ceil(len(rows) / self.settings.max_tokens))]

    def judge(self, width: int, step: int) -> None:
        """Warn where features have become alike; stop after several looks like this."""
        found = []
        for part in ("context", "target"):
            # The look has waited for the device already: reading costs nothing more.
            std, size, rank = (
                float(self.numbers[f"{part}_token_{name}"]) for name in ("std", "norm", "rank")
            )
            share = std / max(size / math.sqrt(width), 1e-30)
            if not share >= self.settings.min_std:
                found.append(
                    f"{part} features vary by {share:.3g} of their size (evaluation.collapse."
                    f"min_std={self.settings.min_std})"
                )
            if not rank / width >= self.settings.min_rank:
                found.append(
                    f"{part} features have effective rank {rank:.1f} of {width} (evaluation."
                    f"collapse.min_rank={self.settings.min_rank})"
                )
        self.alarms = self.alarms + 1 if found else 0
        if not found:
            return
        message = f"collapse at step {step}: {'; '.join(found)}. {ADVICE}"
        limit = self.settings.stop_after
        if limit is not None and self.alarms >= limit:
            raise CollapseError(f"{message} Seen {self.alarms} times in a row.")
        log.warning("%s", message)
