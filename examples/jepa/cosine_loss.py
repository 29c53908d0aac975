"""A loss of one's own: a subclass with one method.

    overt train --package examples/jepa recipe=jepa_cosine training.num_steps=100

`level_losses` is given predictions, targets and which of them count, and returns one number per
level: the sum over this micro-batch divided by the count of the global batch.
"""

from __future__ import annotations

from torch import Tensor, nn

from overt.recipes.hjepa.model import Output
from overt.recipes.hjepa.recipe import HJEPARecipe


class CosineHJEPA(HJEPARecipe):
    """H-JEPA whose distance is one minus the cosine."""

    def level_losses(self, output: Output, counts: Tensor) -> list[Tensor]:
        levels = zip(output.predictions, output.targets, output.valid, counts, strict=True)
        return [
            (
                (1 - nn.functional.cosine_similarity(prediction.float(), target.float(), dim=-1))
                * valid
            ).sum()
            / count.clamp(min=1)
            for prediction, target, valid, count in levels
        ]
