"""Collapse monitor for training: checks the features periodically, warns, and may stop the run."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

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
    """The representation has collapsed and the configuration asks to stop."""


class CollapseMonitor(nn.Module):
    """Statistics of context, target and predictions, updated every N steps.

    Between two checks the last values are reported, so other steps cost nothing. A check sums over
    all ranks, so that all of them decide the same. The monitor is part of the model because
    checkpoints must contain it: values and alarms are buffers, and a resumed run continues
    counting.
    """

    alarms: Tensor  # () int64, looks in a row
    nan_buffers = ("numbers",)
    numbers: Tensor  # (P, 4) of each part, as in TOKEN_NAMES; NaN before the first look

    def __init__(self, settings: CollapseSettings, levels: int, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.width = width  # features of a token of context and target
        pairs = [f"{kind}_h{level}" for level in range(levels) for kind in ("prediction", "target")]
        self.parts = ["context", "target", *pairs]
        self.names = [f"{part}_token_{name}" for part in self.parts for name in TOKEN_NAMES]
        self.register_buffer("alarms", torch.zeros((), dtype=torch.int64))
        self.register_buffer("numbers", torch.full((len(self.parts), len(TOKEN_NAMES)), math.nan))

    def look(self, output: Output, step: int) -> Tensor | None:
        """Return new values (P, 4) at a step that is due; `remember` stores them, not this."""
        every_steps = self.settings.every_steps
        return None if every_steps is None or step % every_steps != 0 else self.measure(output)

    def shown(self, look: Tensor | None, fraction: Tensor | float = 1.0) -> dict[str, Tensor]:
        """Return the values of this check, else of the last one, times `fraction`.

        `context_token_std`, `target_token_rank`, `prediction_h0_token_norm` and so on.
        """
        if self.settings.every_steps is None:
            return {}
        numbers = self.numbers if look is None else look.to(self.numbers)
        return dict(zip(self.names, (numbers * fraction).flatten().unbind(), strict=True))

    def remember(self, looks: Tensor, step: int) -> None:
        """Store the mean of the checks (samples, P, 4) of a step, and judge it."""
        self.numbers.copy_(looks.mean(0))
        self.judge(step)

    @torch.no_grad()
    def measure(self, output: Output) -> Tensor:
        """Return the statistics of every part, (P, 4)."""
        pairs = zip(output.predictions, output.targets, strict=True)
        tokens = [output.context, output.target, *(part for pair in pairs for part in pair)]
        visible, hidden, *cells = output.filling or [0] * (len(output.predictions) + 1)
        filling = [visible, hidden, *(count for count in (hidden, *cells) for _ in range(2))]
        return torch.stack(
            [
                token_statistics(self.some(part, count))
                for part, count in zip(tokens, filling, strict=True)
            ]
        )

    def some(self, tokens: Tensor, filling: int) -> Tensor:
        """Return evenly spaced tokens (n, D), excluding padding at the end."""
        rows = tokens.detach().flatten(0, -2)
        rows = rows[: len(rows) - filling]
        return rows[:: max(1, math.ceil(len(rows) / self.settings.max_tokens))]

    def judge(self, step: int) -> None:
        """Warn if features have become alike; stop after several consecutive alarms."""
        signs, width = [], self.width
        # The only synchronization with the host: once per check, for all values.
        rows = dict(zip(self.parts, self.numbers.tolist(), strict=True))
        for part in ("context", "target"):
            std, _, size, rank = rows[part]
            if not math.isfinite(std + size + rank):
                continue  # diverged, which the engine detects itself: not a collapse
            ratio = std / max(size / math.sqrt(width), 1e-30)
            if ratio < self.settings.min_std:
                signs.append(
                    f"{part} features vary by {ratio:.3g} of their size (evaluation.collapse."
                    f"min_std={self.settings.min_std})"
                )
            if rank / width < self.settings.min_rank:
                signs.append(
                    f"{part} features have effective rank {rank:.1f} of {width} (evaluation."
                    f"collapse.min_rank={self.settings.min_rank})"
                )
        if not signs:
            self.alarms.zero_()
            return
        self.alarms += 1
        message = f"collapse at step {step}: {'; '.join(signs)}. {ADVICE}"
        alarms, limit = int(self.alarms), self.settings.stop_after
        if limit is not None and alarms >= limit:
            raise CollapseError(f"{message} Seen {alarms} times in a row.")
        log.warning("%s", message)
