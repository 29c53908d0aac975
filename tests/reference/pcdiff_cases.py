"""Modules of the PCDiff cases, filled by the rule, and clouds as the network takes them."""

from typing import Any

import torch
from fill_rule import values
from torch import Tensor, nn

from overt.recipes.pcdiff.denoiser import Convolutions, Denoiser, Down, Up

Case = dict[str, Any]
Tensors = dict[str, Tensor]


@torch.no_grad()
def fill_denoiser(module: nn.Module, prefix: str = "model.") -> None:
    """Fill what is trained as an official checkpoint names it."""
    for key, parameter in module.named_parameters():
        parameter.copy_(torch.from_numpy(values(prefix + key, tuple(parameter.shape))))


def rows(tensor: Tensor) -> Tensor:
    """Channels first, (B, C, N), to rows (B, N, C); and back."""
    return tensor.transpose(1, 2).contiguous()


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Everywhere within the tolerance, as it is."""
    assert found.shape == expected.shape
    error = float((found.detach().double() - expected.double()).abs().max())
    assert error <= tolerance, f"largest error {error:.2e}, allowed is {tolerance:.0e}"


def denoiser(case: Case) -> Denoiser:
    """The network of a case, filled."""
    down = [
        Down(None if block is None else Convolutions(*block), *geometry)
        for block, geometry in case["sa_blocks"]
    ]
    up = [Up(widths, Convolutions(*block)) for widths, block in case["fp_blocks"]]
    model = Denoiser(
        down,
        up,
        embed_dim=case["embed_dim"],
        attention=case["use_att"],
        dropout=case["dropout"],
        extra_channels=case["extra_feature_channels"],
        out_channels=case["num_classes"],
        width_multiplier=case["width_multiplier"],
        resolution_multiplier=case["voxel_resolution_multiplier"],
    )
    fill_denoiser(model, case.get("keys_prefix", "model."))
    return model
