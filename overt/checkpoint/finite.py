"""Find weights that training has made non-finite, before they become a checkpoint."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LARGEST_WEIGHT = 1e18


def nonfinite_tensors(*modules: nn.Module | None) -> list[str]:
    """Name the parameters with NaN, Inf or absurd numbers, and the buffers with NaN, of this rank.

    A parameter beyond LARGEST_WEIGHT is as useless as one of Inf: a 32-bit float does not hold its
    square, so every pass from there is NaN, every step is skipped, and training cannot recover. A
    buffer may hold Inf, as masks of attention do, and NaN where its module names it in
    `nan_buffers`. One fused maximum per type and device, and one host wait: for every save, not for
    every step.
    """
    named: list[tuple[str, Tensor, bool]] = []
    for module in modules:
        if module is None:
            continue
        named += [(name, tensor, True) for name, tensor in module.named_parameters()]
        saved_names = set(module.state_dict())  # a buffer that is not saved is computed again
        saved_names -= {
            f"{prefix}.{name}".lstrip(".")
            for prefix, part in module.named_modules()
            for name in getattr(part, "nan_buffers", ())
        }
        named += [
            (name, tensor, False) for name, tensor in module.named_buffers() if name in saved_names
        ]
    groups: dict[tuple[torch.dtype, torch.device], list[tuple[str, Tensor, bool]]] = {}
    for name, tensor, is_parameter in named:
        local = _shard_of(tensor.detach())
        if local.is_floating_point() and local.element_size() > 1 and local.numel() > 0:
            groups.setdefault((local.dtype, local.device), []).append((name, local, is_parameter))
    bad = []
    for group in groups.values():
        # The largest magnitude, not a sum of squares, which overflows for finite weights.
        largest = torch._foreach_norm([tensor for _, tensor, _ in group], math.inf)
        values = torch.stack(largest).tolist()  # host-device sync
        bad += [
            name
            for (name, _, is_parameter), value in zip(group, values, strict=True)
            if math.isnan(value) or (is_parameter and value > LARGEST_WEIGHT)
        ]
    return bad


def _shard_of(tensor: Tensor) -> Tensor:
    """Return what this rank holds; a norm of the sharded tensor would communicate."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
