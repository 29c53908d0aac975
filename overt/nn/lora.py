"""Low-rank adaptation (Hu et al., 2021): a frozen linear layer, plus two narrow matrices.

The adapted layer keeps the names of its weights, so a checkpoint of the base fits as it is.
"""

from __future__ import annotations

import math
import re

import torch.nn.functional as F
from torch import Tensor, nn

from overt.errors import ConfigError
from overt.files.weight_files import some


class LoRALinear(nn.Linear):
    """y = W x + b + scale x B A x, with W and b frozen; B starts at zero, so y starts unchanged."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float = 1.0) -> None:
        super().__init__(
            layer.in_features, layer.out_features, layer.bias is not None, device="meta"
        )
        self.weight, self.bias = layer.weight, layer.bias
        for parameter in (self.weight, *([self.bias] if self.bias is not None else [])):
            parameter.requires_grad_(False)
        self.lora_a = nn.Parameter(self.weight.new_empty(rank, self.in_features))
        self.lora_b = nn.Parameter(self.weight.new_zeros(self.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.scale * F.linear(
            F.linear(input, self.lora_a), self.lora_b
        )


def add_lora(model: nn.Module, match: str, rank: int, scale: float = 1.0) -> list[str]:
    """Freeze a model, and adapt its linear layers whose names `match`, a regular expression, fits.

    Returns their names. Unfreeze what else is to be trained afterward.
    """
    linear = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    chosen = [name for name in linear if re.search(match, name)]
    if not chosen or rank < 1:
        raise ConfigError(
            f"LoRA of rank {rank} for {match!r} adapts {len(chosen)} layers; use a rank of 1 or "
            f"more, and an expression that fits linear layers of the model: {some(linear, 8)}"
        )
    model.requires_grad_(False)
    for name in chosen:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LoRALinear(linear[name], rank, scale))
    return chosen
