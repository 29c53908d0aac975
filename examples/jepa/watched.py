"""Custom monitoring: numbers of one's own in every log line, pictures and histograms besides.

    overt train --package examples/jepa recipe=jepa_watched training.num_steps=100

A metric is a share of the global batch, like a loss: what micro-batches and processes return adds
up. What is not a number goes to the run's logger, which `custom_step` can reach.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt.recipe import StepOutput
from overt.recipes.hjepa.data import Batch
from overt.recipes.hjepa.model import Output
from overt.recipes.hjepa.recipe import HJEPARecipe

EVERY = 50  # steps between two histograms


class WatchedHJEPA(HJEPARecipe):
    """H-JEPA that also logs how well each level's direction is predicted."""

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        outputs: list[Output] = []
        hook = model.register_forward_hook(lambda _, inputs, output: outputs.append(output))
        try:
            result = super().loss(model, batch, counts, step)
        finally:
            hook.remove()
        metrics = result.metrics | cosines(outputs[0], counts["tokens"])
        return StepOutput(result.losses, metrics, result.carry)

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        """The usual step, and now and then the weights' histograms."""
        step = super().custom_step(trainer, micro_batches, counts)
        if trainer.state.step % EVERY == 0:
            trainer.logger.log_model_weights(trainer.model.predictor, trainer.state.step)
        return step


@torch.no_grad()
def cosines(output: Output, counts: Tensor) -> dict[str, Tensor]:
    """The mean cosine of prediction and target on each level, this micro-batch's share of it."""
    means = {}
    for level, (prediction, target, valid) in enumerate(
        zip(output.predictions, output.targets, output.valid, strict=True)
    ):
        cosine = nn.functional.cosine_similarity(prediction.float(), target.float(), dim=-1)
        means[f"cosine_h{level}"] = (cosine * valid).sum() / counts[level].clamp(min=1)
    return means
