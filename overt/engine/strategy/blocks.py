"""Activation checkpointing and compilation of a model's repeated blocks, in place.

In place, so that the keys of the state dict stay what the model's author wrote.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint

from overt.config.schema import TrainingSection
from overt.engine.returned import returned
from overt.errors import ConfigError
from overt.health.compiling import spare_compilers


def recompute_in_backward(blocks: list[nn.Module]) -> None:
    """Keep only each block's input; its activations are computed again in the backward pass."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def compile_model(recipe: Any, model: nn.Module, training: TrainingSection) -> None:
    """Compile the whole model, or its blocks one by one, as `training.compile` says."""
    units = [model]
    if training.compile == "blocks":
        blocks = recipe.blocks(model)
        units = need_blocks(blocks, "training.compile=blocks")
        if training.strategy != "fsdp":
            units = returned(recipe, "compile_units", recipe.compile_units(model))
    compile_in_place(
        units,
        training.compile_backend,
        training.compile_memory_budget,
        training.compile_recompute,
    )


def compile_in_place(
    modules: list[nn.Module], backend: str, memory_budget: float, recompute: bool = True
) -> None:
    """Compile each module on its own: short compile times, and gradients of a block are ready as
    the block finishes, so that communication overlaps with computation.

    With `recompute` norms and activation functions are computed again in the backward pass rather
    than kept. With a `memory_budget` below 1 only about that fraction of the activations is kept;
    the cheapest are recomputed.
    """
    torch._functorch.config.activation_memory_budget = memory_budget
    torch._functorch.config.ban_recompute_materialized_backward = not recompute
    # Training, evaluation and short last batches are separate variants.
    torch._dynamo.config.recompile_limit = 64
    spare_compilers()
    for module in modules:
        module.compile(backend=backend)


def need_blocks(blocks: list[nn.Module] | None, key: str) -> list[nn.Module]:
    """The recipe's blocks, or an error that says which setting asked for them."""
    if not blocks:
        raise ConfigError(f"{key} works block by block, but this recipe names no blocks")
    return blocks
