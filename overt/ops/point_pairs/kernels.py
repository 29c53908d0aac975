"""Triton kernel that packs neighborhoods: a program serves one center."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _pack(
    index,
    hits,
    starts,
    neighbours,
    owners,
    weights,
    count,
    points,
    size,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    center = tl.program_id(0)
    cloud = center // count
    slot = tl.arange(0, WIDTH)
    neighbors = tl.maximum(tl.load(hits + center), 1)
    position = tl.load(starts + center) + slot
    real = (slot < neighbors) & (position < size)
    row = center.to(tl.int64) * SLOTS + slot
    neighbour = tl.load(index + row, mask=real, other=0) + cloud * points
    tl.store(neighbours + position, neighbour, mask=real)
    tl.store(owners + position, center, mask=real)
    tl.store(
        weights + position, tl.where(slot == 0, SLOTS - neighbors + 1, 1).to(tl.float32), mask=real
    )


@torch.library.custom_op("overt::pack_pairs", mutates_args=())
def pack_pairs_fused(
    index: Tensor, hits: Tensor, starts: Tensor, points: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `pack_pairs_plain`."""
    batch, count, slots = index.shape
    neighbours = torch.zeros(size, dtype=torch.int32, device=index.device)
    owners = torch.full((size,), batch * count, dtype=torch.int32, device=index.device)
    weights = torch.zeros(size, dtype=torch.float32, device=index.device)
    _pack[(batch * count,)](
        index.contiguous(),
        hits.contiguous(),
        starts,
        neighbours,
        owners,
        weights,
        count,
        points,
        size,
        SLOTS=slots,
        WIDTH=triton.next_power_of_2(slots),
        num_warps=1,
    )
    return neighbours, owners, weights


@pack_pairs_fused.register_fake
def _(
    index: Tensor, hits: Tensor, starts: Tensor, points: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    result = index.new_empty(size)
    return result, torch.empty_like(result), torch.empty_like(result, dtype=torch.float32)
