"""A control that must not learn: every image has to predict the features of another one.

Its loss falls like that of the real thing, and lower: only k-NN and rank tell the difference.
"""

from __future__ import annotations

from torch import Tensor

from overt.recipes.hjepa.model import HJEPA
from overt.recipes.hjepa.recipe import HJEPARecipe


class Misled(HJEPA):
    """H-JEPA with the targets of the next image of the batch."""

    def encode_targets(self, images: Tensor) -> Tensor:
        return super().encode_targets(images.roll(1, dims=0))


class MisledHJEPA(HJEPARecipe):
    """The recipe of this model."""

    model_class = Misled
