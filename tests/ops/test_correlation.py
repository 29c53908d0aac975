"""overt/ops/correlation.py: the definition against brute force, the kernels against it."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from overt.geometry.sample import SquareTaps, bilinear_sample
from overt.ops import HAS_TRITON
from overt.ops.correlation import correlate, correlate_plain, padded_width

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


@pytest.mark.parametrize("radius", [1, 3])
def test_definition_equals_sampling_then_products(radius: int) -> None:
    case = make_case(radius, channels=8, points=3, frames=2, device="cpu")
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
    width = expected.shape[-1]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        result = correlate(cells, cells.detach().to(dtype), *case[1:])
        assert result.dtype == dtype
        assert result.shape[-1] == padded_width(radius)
        assert not result[..., width:].any()
        found = torch.autograd.grad(result[..., :width].float(), (cells, support), gradient)
        for value, target in zip((result[..., :width], *found), (expected, *wanted), strict=True):
            error = (value.float() - target).norm() / target.norm()
            assert error < tolerance, (dtype, float(error))
