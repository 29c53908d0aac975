"""overt/ops/correlation.py: the definition against brute force, the kernels against it."""

import gc
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from overt.geometry.sample import SquareTaps, bilinear_sample
from overt.ops import HAS_TRITON
from overt.ops.correlation import (
    SharedGradient,
    correlate,
    correlate_plain,
    padded_width,
    shared_gradient,
)

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton"
)


class Case(NamedTuple):
    cells: Tensor
    support: Tensor
    map_rows: Tensor
    sizes_xy: Tensor
    centres_xy: Tensor
    taps: SquareTaps


def make_case(radius: int, channels: int, points: int, frames: int, device: str) -> Case:
    """Two samples, three levels; centres inside, on cells, at the border and far outside."""
    generator = torch.Generator().manual_seed(radius + frames)
    batch, sizes = 2, torch.tensor([[13, 9], [6, 4], [3, 2]])
    area = sizes.prod(-1)
    first = (area.cumsum(0) - area) * batch * frames
    order = torch.arange(batch * frames).view(batch, 1, frames)
    cells = torch.randn(int(area.sum()) * batch * frames, channels, generator=generator)
    samples = (2 * radius + 1) ** 2
    support = torch.randn(batch, points, 3, samples, channels, generator=generator)
    centres = torch.randn(batch, points, 3, frames, 2, generator=generator) * 5 + 4
    centres[0, 0, 0, 0] = torch.tensor([2.0, 3.0])
    centres[0, 0, 1, 0] = torch.tensor([-1000.0, 5000.5])
    centres[1, 0, 2, 0] = torch.tensor([2.0, 1.0])  # the last cell
    tensors = (cells, support, first[:, None] + order * area[:, None], sizes, centres)
    return Case(*(tensor.to(device) for tensor in tensors), SquareTaps(radius).to(device))


@pytest.mark.parametrize(("radius", "channels"), [(1, 8), (1, 16), (3, 8), (3, 64)])
def test_definition_equals_sampling_then_products(radius: int, channels: int) -> None:
    case = make_case(radius, channels, points=3, frames=2, device="cpu")
    result = correlate_plain(*case)
    offsets = torch.arange(-radius, radius + 1.0)
    square = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), -1).flatten(0, 1)
    for sample in range(2):
        for level, (width, height) in enumerate(case.sizes_xy.tolist()):
            for frame in range(2):
                row = case.map_rows[sample, level, frame]
                image = case.cells[row : row + width * height].view(1, height, width, -1)
                places = case.centres_xy[sample, :, level, frame, None] + square  # (N, P*P, 2)
                read = bilinear_sample(image.permute(0, 3, 1, 2), places[None])[0]  # (C, N, P*P)
                expected = torch.einsum("cnp,nqc->npq", read, case.support[sample, :, level])
                torch.testing.assert_close(result[sample, :, level, frame], expected.flatten(1))


@gpu
@needs_gpu
@pytest.mark.parametrize(("radius", "channels", "frames"), [(3, 128, 5), (3, 32, 37), (2, 64, 16)])
def test_kernels_equal_the_definition(radius: int, channels: int, frames: int) -> None:
    case = make_case(radius, channels, points=5, frames=frames, device="cuda")
    cells, support = case.cells.requires_grad_(), case.support.requires_grad_()
    expected = correlate_plain(*case)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (cells, support), gradient)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        result = correlate(cells, cells.detach().to(dtype), *case[1:])
        assert result.dtype == dtype
        assert result.shape[-1] == padded_width(radius)
        samples = (2 * radius + 1) ** 2
        result = result.unflatten(-1, (samples, -1))
        assert not result[..., samples:].any()
        result = result[..., :samples].flatten(-2)
        found = torch.autograd.grad(result.float(), (cells, support), gradient)
        for value, target in zip((result, *found), (expected, *wanted), strict=True):
            error = (value.float() - target).norm() / target.norm()
            assert error < tolerance, (dtype, float(error))


def test_shared_gradients_meet_and_leave_nothing_behind() -> None:
    class Triple(torch.autograd.Function):
        """Three times the cells, its gradient left in the shared table."""

        @staticmethod
        def forward(ctx, turn, table, cells):
            ctx.table, ctx.cells = table, cells
            return 3 * cells

        @staticmethod
        def backward(ctx, gradient):
            ctx.table.add_to(ctx.cells).add_(3 * gradient)
            return torch.zeros(()), None, None

    leaf = torch.ones(4, 2, requires_grad=True)
    cells = leaf * 2
    shared = SharedGradient.of(cells)
    first, second = (Triple.apply(*shared, cells.detach()) for _ in range(2))
    (cells.sum() + first.sum() + 10 * second.sum()).backward()
    assert torch.equal(leaf.grad, torch.full((4, 2), 2 * (1 + 3 + 30.0)))
    assert shared.table.sums is None
    # A circle of references would keep a step's whole graph until the garbage collector comes.
    turn = weakref.ref(shared.turn.grad_fn)
    gc.disable()
    try:
        del shared, cells, first, second
        assert turn() is None
    finally:
        gc.enable()


@gpu
@needs_gpu
def test_a_shared_table_gives_the_same_gradients() -> None:
    case = make_case(3, 128, points=5, frames=7, device="cuda")
    leaf, support = case.cells.requires_grad_(), case.support.requires_grad_()
    results = []
    for is_shared in (False, True):
        cells = leaf * 1.0
        shared = shared_gradient(cells) if is_shared else None
        used = cells.detach()
        both = [correlate(cells, used, *case[1:], shared).sin().sum() for _ in range(2)]
        total = both[0] + 2 * both[1] + cells.sum()
        results.append(torch.autograd.grad(total, (leaf, support)))
    for one, other in zip(*results, strict=True):  # additions in any order
        assert (one - other).norm() < 1e-5 * one.norm()
