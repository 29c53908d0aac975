"""Dropout by a seed on the device, with the Triton twin where it can run."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.dropout.plain import dropout_plain


def dropout(x: Tensor, seed: Tensor, site: int, rate: float) -> Tensor:
    """`dropout_plain`, by the kernel where it can run: the same bits.

    A compiler fuses the definition itself.
    """
    if torch.compiler.is_compiling() or not use_kernels("dropout", x):
        return dropout_plain(x, seed, site, rate)
    from overt.ops.dropout.kernels import dropout_fused

    result: Tensor = dropout_fused(x, seed, site, rate)
    return result
