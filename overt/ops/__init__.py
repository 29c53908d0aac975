"""Operations that dominate a model's time: plain PyTorch definitions, Triton twins for CUDA."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None


def compute_type(like: Tensor) -> torch.dtype:
    """The type of matrix products: autocast's where that is on, or the tensor's own."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype
