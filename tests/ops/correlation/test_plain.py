"""overt/ops/correlation/plain.py: the definition against sampling, then products."""

import pytest
import torch
from correlation_cases import Case, make_case
from torch import Tensor

from overt.geometry.sample import bilinear_sample
from overt.ops.correlation.plain import correlate_plain

SIZES = [(1, 8), (1, 16), (3, 8), (3, 64)]


def in_float64(case: Case) -> Case:
    """The same numbers, of which each is also one in float64."""
    return Case(
        case.cells.double(),
        case.support.double(),
        case.map_rows,
        case.sizes_xy,
        case.centres_xy.double(),
        case.taps.double(),
    )


def sample_then_multiply(case: Case, radius: int) -> Tensor:
    """(B, N, L, T, P*P * P*P) by a loop over all maps."""
    offsets = torch.arange(-radius, radius + 1.0)
    square = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), -1).flatten(0, 1)
    batch, points, levels, frames, _ = case.centres_xy.shape
    result = case.cells.new_empty((batch, points, levels, frames, len(square) ** 2))
    for sample in range(batch):
        for level, (width, height) in enumerate(case.sizes_xy.tolist()):
            for frame in range(frames):
                row = case.map_rows[sample, level, frame]
                image = case.cells[row : row + width * height].view(1, height, width, -1)
                positions = case.centres_xy[sample, :, level, frame, None] + square  # (N, P*P, 2)
                read = bilinear_sample(image.permute(0, 3, 1, 2), positions[None])[0]
                products = torch.einsum("cnp,nqc->npq", read, case.support[sample, :, level])
                result[sample, :, level, frame] = products.flatten(1)
    return result


@pytest.mark.parametrize(("radius", "channels"), SIZES)
def test_definition_equals_sampling_then_products(radius: int, channels: int) -> None:
    case = in_float64(make_case(radius, channels, points=3, frames=2, device="cpu"))
    torch.testing.assert_close(correlate_plain(*case), sample_then_multiply(case, radius))


@pytest.mark.parametrize(("radius", "channels"), SIZES)
def test_in_float32_it_is_off_by_the_rounding_of_its_sums_at_most(
    radius: int, channels: int
) -> None:
    """A sum of n products is off by n roundings of the sum of their sizes, in whatever order."""
    case = make_case(radius, channels, points=3, frames=2, device="cpu")
    found = correlate_plain(*case)
    exact = in_float64(case)
    sizes = correlate_plain(exact.cells.abs(), exact.support.abs(), *exact[2:])
    roundings = channels + 8  # the products, two linear interpolations and their weights
    allowed = roundings * torch.finfo(torch.float32).eps * sizes
    assert ((found - correlate_plain(*exact)).abs() <= allowed).all()
