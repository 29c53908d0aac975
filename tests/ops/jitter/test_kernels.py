"""overt/ops/jitter/kernels.py against the definition."""

import numpy as np
import pytest
import torch
from kernel_tests import DEVICE, kernel_test

from overt.ops.jitter.operators import OPERATORS, Jitter
from overt.ops.jitter.plain import jitter_plain


def drawn(frames: int, orders: list[tuple[str, ...]]) -> list[Jitter]:
    rng = np.random.default_rng(0)
    return [
        Jitter(orders[n % len(orders)], *rng.uniform(0.5, 1.6, 3), hue=rng.uniform(-0.5, 0.5))
        for n in range(frames)
    ]


@kernel_test
@pytest.mark.parametrize("size", [(5, 7), (33, 64), (40, 129)])  # less than a block, and more
@pytest.mark.parametrize(
    "orders",
    [
        *([(name,)] for name in OPERATORS),
        [OPERATORS, OPERATORS[::-1], OPERATORS[2:] + OPERATORS[:2]],  # contrast early and late
    ],
)
def test_colors_are_those_of_the_definition(orders, size):
    from overt.ops.jitter.kernels import jitter_fused

    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (4, 3, *size), generator=generator, dtype=torch.uint8)
    frames[0, :, 0, :3] = 77  # gray pixels have no hue
    jitters = drawn(4, orders)
    operators = torch.tensor([[OPERATORS.index(name) for name in each.order] for each in jitters])
    amounts = torch.tensor([[getattr(each, name) for name in each.order] for each in jitters])
    fused = jitter_fused(frames.to(DEVICE), operators.to(DEVICE), amounts.float().to(DEVICE))
    difference = (fused.cpu().int() - jitter_plain(frames, jitters).int()).abs()
    # A product on a whole number is cut above or below it; later operators turn that further.
    assert difference.max() <= 2
    assert (difference > 0).double().mean() < 2e-3
