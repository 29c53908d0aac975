"""Attention for the tests, without any of torch's kernels."""

import torch
from torch import Tensor


def written_out(qkv: Tensor) -> Tensor:
    """Attention within each sequence of (S, L, 3, H, d), written out."""
    query, key, value = qkv.unbind(2)
    scores = torch.einsum("slhd,smhd->shlm", query, key) / qkv.shape[-1] ** 0.5
    return torch.einsum("shlm,smhd->slhd", scores.softmax(-1), value)
