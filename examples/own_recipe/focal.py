"""The same recipe with another loss: a subclass that overrides `loss` and nothing else."""

import torch.nn.functional as F
from torch import Tensor, nn

from overt.recipe import StepOutput
from own_recipe.config import FocalSettings
from own_recipe.recipe import Drawings, Shapes


class FocalShapes(Shapes):
    """Focal loss (arXiv:1708.02002, equation 4): the better recognized, the less it counts."""

    settings: FocalSettings

    def loss(
        self, model: nn.Module, batch: Drawings, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        options = self.settings.loss
        logits = model(batch.images)
        entropy = F.cross_entropy(
            logits, batch.labels, reduction="none", label_smoothing=options.label_smoothing
        )  # (B,)
        probability = logits.softmax(1).gather(1, batch.labels[:, None])[:, 0]  # of the true shape
        focal = (1 - probability) ** options.gamma * entropy
        return StepOutput(
            losses={"focal": focal.sum() / counts["samples"]},
            metrics={"entropy": entropy.detach().sum() / counts["samples"]},
        )
