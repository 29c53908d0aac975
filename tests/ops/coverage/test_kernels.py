"""overt/ops/coverage/kernels.py draws what the definition draws, and moves corners as it does."""

import torch
from kernel_tests import DEVICE, assert_same_results, kernel_test

from overt.ops.coverage.plain import log_uncovered_plain

SIZE = (20, 28)


@kernel_test
def test_faces_of_all_kinds() -> None:
    from overt.ops.coverage.kernels import log_uncovered_fused

    generator = torch.Generator().manual_seed(0)
    middles = 40 * torch.rand(2, 60, 1, 2, generator=generator) - 6  # some are outside
    corners = middles + 4 * torch.randn(2, 60, 3, 2, generator=generator)
    drawn = (torch.rand(2, 60, generator=generator) < 0.7).to(DEVICE)
    assert_same_results(
        lambda corners: log_uncovered_fused(corners, drawn, *SIZE, 0.25, 1.0),
        lambda corners: log_uncovered_plain(corners, drawn, SIZE, 0.25, 1.0, None)[0],
        [corners.to(DEVICE)],
        1e-4,
    )


@kernel_test
def test_faces_without_area() -> None:
    """Their edges are equally near: how the gradient is split between corners is left open.

    No pixel lies on the line, where rounding decides whether it is inside.
    """
    from overt.ops.coverage.kernels import log_uncovered_fused

    point = torch.tensor([[[6.0, 7.5]] * 3])
    line = torch.tensor([[[3.0, 3.1], [15.0, 12.1], [15.0, 12.1]]])
    corners = torch.stack([point, line]).to(DEVICE)  # (2, 1, 3, 2)
    drawn = torch.ones(2, 1, dtype=torch.bool, device=DEVICE)
    assert_same_results(
        lambda shift: log_uncovered_fused(corners + shift, drawn, *SIZE, 0.25, 1.0),
        lambda shift: log_uncovered_plain(corners + shift, drawn, SIZE, 0.25, 1.0, None)[0],
        [torch.zeros(2, 1, 1, 2, device=DEVICE)],
        1e-4,
    )
