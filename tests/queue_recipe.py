"""A small MoCo: keys of past batches, handed from `loss` to `after_step`, are negatives later on.

It has the settings of the toy recipe. Its queue is a state of the recipe's own.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy_recipe.config import Settings
from toy_recipe.recipe import WIDTH, Batch, Toy

from overt.distributed import World
from overt.nn.ema import update_ema
from overt.recipe import StepOutput

QUEUE, FEATURES, TEMPERATURE = 16, 6, 0.2


class TwoEncoders(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()

        def encoder() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(WIDTH, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, FEATURES)
            )

        self.query, self.key = encoder(), encoder().requires_grad_(False)
        self.key.load_state_dict(self.query.state_dict())

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # (B, FEATURES)
        with torch.no_grad():
            keys = F.normalize(self.key(targets), dim=1)
        return F.normalize(self.query(inputs), dim=1), keys


class MoCo(Toy):
    """Learns to find the target of an input among those of past batches."""

    gathers_carry = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        generator = torch.Generator().manual_seed(0)
        self.queue = F.normalize(torch.randn(QUEUE, FEATURES, generator=generator), dim=1)
        self.filled = 0

    def build_model(self) -> Any:
        return TwoEncoders(self.settings.model.width, self.settings.model.dropout)

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        queries, keys = model(batch.inputs, batch.targets)
        positive = (queries * keys).sum(1, keepdim=True)  # (B, 1)
        scores = torch.cat([positive, queries @ self.queue.T], dim=1) / TEMPERATURE
        labels = torch.zeros(len(scores), dtype=torch.int64)
        entropy = F.cross_entropy(scores, labels, reduction="sum") / counts["samples"]
        return StepOutput({"entropy": entropy}, carry={"keys": keys})

    def after_step(
        self, model: TwoEncoders, step: int, applied: Tensor, carry: dict[str, Tensor]
    ) -> None:
        update_ema(model.key, model.query, 0.9, applied)
        newest = torch.cat([carry["keys"], self.queue])[:QUEUE]
        self.queue = torch.where(applied > 0, newest, self.queue)  # a skipped step adds nothing
        self.filled += int(applied) * len(carry["keys"])

    def blocks(self, model: TwoEncoders) -> list[nn.Module]:
        return [model.query]

    def evaluate(self, model: TwoEncoders, world: World) -> dict[str, float]:
        return {"spread": float(self.queue.std())}

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue, "filled": self.filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queue, self.filled = state["queue"], state["filled"]
