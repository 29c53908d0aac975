"""The same recipe with another update: two passes over the batch before the weights move.

Sharpness-aware minimisation (arXiv:2010.01412) takes the gradient not where the weights are but
uphill of there, at radius x gradient / |gradient|. No loss can say that: it needs the step itself.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from overt.engine.loader import MicroBatch
from overt.engine.optimizer import set_learning_rate
from overt.engine.watch import poison_if_not_finite
from overt.errors import ConfigError
from overt.recipe import StepOutput
from own_recipe.config import SharpnessSettings
from own_recipe.recipe import Shapes

if TYPE_CHECKING:
    from overt.engine.trainer import Trainer


class SharpnessAwareShapes(Shapes):
    """Shapes, trained towards flat minima."""

    settings: SharpnessSettings

    def custom_step(
        self, trainer: Trainer, micro_batches: list[MicroBatch], counts: dict[str, Tensor]
    ) -> StepOutput:
        """Gradient here, walk uphill, gradient there, walk back, update."""
        training = trainer.config.training
        if training.precision == "fp16" or training.ema_momentum is not None:
            raise ConfigError(
                f"training.precision={training.precision}, training.ema_momentum="
                f"{training.ema_momentum}: this step runs no scaler and keeps no average; use "
                "bf16, tf32 or fp32, and null"
            )
        parameters = trainer.parameters

        output = self.add_gradients(trainer, micro_batches, counts)
        here = [parameter.detach().clone() for parameter in parameters]
        norm = clip_grad_norm_(parameters, math.inf)  # measures, clips nothing
        step = self.settings.loss.radius / norm.clamp(min=1e-12)
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None  # every layer has a say in the loss
                parameter.add_(parameter.grad * step)

        trainer.optimizer.zero_grad(set_to_none=True)
        self.add_gradients(trainer, micro_batches, counts)
        with torch.no_grad():
            for parameter, value in zip(parameters, here, strict=True):
                parameter.copy_(value)  # back, to the last bit

        norm = clip_grad_norm_(parameters, training.grad_clip_norm or math.inf)
        trainer.guard.protect(trainer.optimizer, norm)  # NaN never reaches the weights
        set_learning_rate(trainer.optimizer, trainer.schedule, trainer.state.updates)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        return output

    def add_gradients(
        self, trainer: Trainer, micro_batches: list[MicroBatch], counts: dict[str, Tensor]
    ) -> StepOutput:
        """Forward and backward as in `Trainer.train_step`; the sum of this process's shares."""
        losses: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}
        for index, micro in enumerate(micro_batches):
            batch = trainer.to_device(micro.batch)
            is_last = index == len(micro_batches) - 1
            amp = torch.autocast(trainer.device.type, trainer.dtype, enabled=bool(trainer.dtype))
            with nullcontext() if is_last or trainer.ddp is None else trainer.ddp.no_sync():
                with amp:
                    output = self.loss(trainer.wrapped, batch, counts, trainer.state.step)
                output = output.scaled(0.0) if micro.is_padding else output
                # The shares of all processes are to be added up, where DDP takes their mean.
                loss = poison_if_not_finite(output.total) * trainer.world.world_size
                loss.backward()  # type: ignore[no-untyped-call]
            for sums, shares in ((losses, output.losses), (metrics, output.metrics)):
                for name, share in shares.items():
                    sums[name] = sums.get(name, 0.0) + share.detach()
        return StepOutput(losses, metrics)
