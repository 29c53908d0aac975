"""One evaluation of a model between two steps, without a trace in training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from overt.checkpoint import random_state
from overt.distributed import World
from overt.recipe import Recipe


def score(
    recipe: Recipe,
    gathered: AbstractContextManager[nn.Module],
    world: World,
    autocast: AbstractContextManager[Any],
    log_picture: Callable[[str, Tensor], None],
) -> dict[str, float]:
    """Return the recipe's scores; pictures are drawn on the main rank."""
    with random_state.undisturbed(), gathered as model:
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode(), autocast:
                scores = recipe.evaluate(model, world)
                if world.is_main:
                    for name, picture in recipe.visualize(model).items():
                        log_picture(name, picture)
        finally:
            model.train(was_training)
    return scores
