"""overt/ops/point_pairs/kernels.py packs as the definition does."""

import torch
from kernel_tests import DEVICE, ON_GPU, kernel_test

from overt.ops.point_pairs.plain import pack_pairs_plain
from overt.ops.point_search.api import ball_query


@kernel_test
def test_the_kernel_packs_alike() -> None:
    from overt.ops.point_pairs.kernels import pack_pairs_fused

    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2, 900 if ON_GPU else 60, 3, generator=generator).to(DEVICE)
    index, hits = ball_query(points[:, :40], points, 0.7, 12)
    ends = hits.clamp(min=1).flatten().cumsum(0)
    for size in (int(ends[-1]), int(ends[-1]) + 7, int(ends[-1]) - 9):
        starts = torch.nn.functional.pad(ends, (1, 0)).clamp(max=size).int()
        found = pack_pairs_fused(index, hits, starts, points.shape[1], size)
        expected = pack_pairs_plain(index, hits, starts, points.shape[1], size)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
