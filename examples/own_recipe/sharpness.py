"""The same recipe with another update: two passes over the batch before the weights move.

Sharpness-aware minimization (arXiv:2010.01412) takes the gradient not where the weights are but
uphill of there, at radius x gradient / |gradient|. No loss can say that: it needs the step itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from overt.engine.loader import MicroBatch
from overt.errors import ConfigError
from overt.recipe import StepOutput
from own_recipe.config import SharpnessSettings
from own_recipe.recipe import Shapes

if TYPE_CHECKING:
    from overt.engine.trainer import Trainer


class SharpnessAwareShapes(Shapes):
    """Shapes, trained toward flat minima."""

    settings: SharpnessSettings

    def custom_step(
        self, trainer: Trainer, micro_batches: list[MicroBatch], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        """Gradient here, walk uphill, gradient there, walk back, update."""
        if trainer.scaler.is_enabled():
            raise ConfigError(
                "training.precision=fp16: uphill is measured with gradients, which fp16 scales; "
                "use bf16, tf32 or fp32"
            )
        parameters = trainer.parameters

        outputs = trainer.add_gradients(micro_batches, counts)
        here = [parameter.detach().clone() for parameter in parameters]
        norm = clip_grad_norm_(parameters, math.inf)  # measures, clips nothing
        step = self.settings.loss.radius / norm.clamp(min=1e-12)
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None  # every layer has a say in the loss
                parameter.add_(parameter.grad * step)

        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.add_gradients(micro_batches, counts)
        with torch.no_grad():
            for parameter, value in zip(parameters, here, strict=True):
                parameter.copy_(value)  # back, to the last bit
        return outputs, *trainer.update()
