"""Frozen linear layers in 8-bit floats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt.ops.linear_fp8.api import linear_fp8
from overt.ops.linear_fp8.plain import dequantize, quantize_rows


class Fp8Linear(nn.Module):
    """A frozen `nn.Linear` whose inputs and weights are rounded to 8-bit floats.

    A state dict of it is that of the layer it replaces: `weight` is in the type of the bias, which
    holds the rounded numbers exactly, and is rounded when it is loaded.
    """

    codes: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        assert linear.bias is not None, "a layer without a bias"
        self.bias = nn.Parameter(linear.bias.detach(), requires_grad=False)
        codes, scales = quantize_rows(linear.weight.detach())
        # As bytes: `.to(dtype)`, an average of weights and gloo know no 8-bit floats.
        self.register_buffer("codes", codes.view(torch.uint8), persistent=False)  # (N, K)
        self.register_buffer("scales", scales, persistent=False)  # (N, 1)

    @property
    def weight(self) -> Tensor:
        """The rounded weights (N, K), in the type of the bias."""
        return dequantize(self.codes, self.scales, self.bias.dtype)

    def forward(self, x: Tensor, largest: Tensor | None = None) -> Tensor:
        """See `linear_fp8`."""
        # `.to(dtype)` casts the scales too, exactly: they are powers of two.
        return linear_fp8(x, self.codes, self.scales.float(), self.bias, largest)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = f"{prefix}weight"
        others = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if key not in state_dict:
            missing_keys.append(key)
            return
        weight: Tensor = state_dict[key]
        if weight.shape != self.codes.shape:
            error_msgs.append(
                f"size mismatch for {key}: {tuple(weight.shape)} in the checkpoint, "
                f"{tuple(self.codes.shape)} in the model"
            )
            return
        codes, scales = quantize_rows(weight.detach())
        self.codes.copy_(codes.view(torch.uint8))
        self.scales.copy_(scales)


def quantize_linears(module: nn.Module) -> None:
    """Replace every `nn.Linear` within a module by an `Fp8Linear`, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, Fp8Linear(child))
