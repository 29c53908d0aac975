"""overt/ops/deformable.py: the definition against plain loops, the kernels against it."""

import os
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from overt.ops import HAS_TRITON
from overt.ops.deformable import Sizes, deformable_plain, sampling_locations

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter runs the kernels on the CPU where TRITON_INTERPRET=1 asks for it.
RUNS = HAS_TRITON and (DEVICE == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
needs_kernels = pytest.mark.skipif(not RUNS, reason="needs Triton with CUDA or its interpreter")

FOUR_LEVELS = ((8, 12), (4, 6), (2, 3), (1, 1))
TWO_LEVELS = ((5, 7), (2, 3))


class Case(NamedTuple):
    values: Tensor
    reference: Tensor
    offsets: Tensor
    logits: Tensor
    sizes: Sizes


def make_case(
    sizes: Sizes, queries: int, heads: int, places: int, channels: int, device: str = "cpu"
) -> Case:
    """Places inside, on cells, across the border, far outside."""
    generator = torch.Generator().manual_seed(queries + places)
    cells = sum(height * width for height, width in sizes)
    levels = len(sizes)
    values = torch.randn(2, cells, heads, channels, generator=generator)
    reference = torch.rand(2, queries, levels, 2, generator=generator)
    reference[0, 0] = torch.tensor([0.0, 1.0])
    offsets = torch.randn(2, queries, heads, levels, places, 2, generator=generator) * 2
    offsets[0, 0, 0] = 0.0
    offsets[1, 0, 0] *= 1e6
    logits = torch.randn(2, queries, heads, levels, places, generator=generator)
    tensors = (part.to(device) for part in (values, reference, offsets, logits))
    return Case(*tensors, sizes)


def read_cell(image: Tensor, x: int, y: int) -> Tensor:
    """A cell of (h, w, D), zero outside."""
    height, width, channels = image.shape
    inside = 0 <= x < width and 0 <= y < height
    return image[y, x] if inside else torch.zeros(channels)


def brute_force(case: Case) -> Tensor:
    batch, queries, heads, levels, places, _ = case.offsets.shape
    result = torch.zeros(batch, queries, heads, case.values.shape[-1])
    for b in range(batch):
        for q in range(queries):
            for h in range(heads):
                weights = case.logits[b, q, h].flatten().softmax(0).view(levels, places)
                first = 0
                for level, (height, width) in enumerate(case.sizes):
                    last = first + height * width
                    image = case.values[b, first:last, h].view(height, width, -1)
                    first = last
                    for place in range(places):
                        offset = case.offsets[b, q, h, level, place]
                        x = case.reference[b, q, level, 0] * width + offset[0] - 0.5
                        y = case.reference[b, q, level, 1] * height + offset[1] - 0.5
                        left, top = int(x.floor()), int(y.floor())
                        share_x, share_y = x - left, y - top
                        upper = read_cell(image, left, top) * (1 - share_x)
                        upper = upper + read_cell(image, left + 1, top) * share_x
                        lower = read_cell(image, left, top + 1) * (1 - share_x)
                        lower = lower + read_cell(image, left + 1, top + 1) * share_x
                        read = upper * (1 - share_y) + lower * share_y
                        result[b, q, h] += weights[level, place] * read
    return result


@pytest.mark.parametrize(("sizes", "places"), [(FOUR_LEVELS, 3), (TWO_LEVELS, 4)])
def test_definition_equals_a_loop_over_every_place(sizes: Sizes, places: int) -> None:
    case = make_case(sizes, queries=3, heads=2, places=places, channels=5)
    torch.testing.assert_close(deformable_plain(*case), brute_force(case), atol=1e-5, rtol=1e-4)


def test_a_place_is_its_reference_moved_by_cells_of_its_level() -> None:
    reference = torch.tensor([0.5, 0.25]).expand(1, 1, 2, 2)
    offsets = torch.tensor([7.0, 5.0]).expand(1, 1, 1, 2, 1, 2)
    found = sampling_locations(reference, offsets, TWO_LEVELS)
    assert found[0, 0, 0, 0, 0].tolist() == pytest.approx([0.5 + 7 / 7, 0.25 + 5 / 5])
    assert found[0, 0, 0, 1, 0].tolist() == pytest.approx([0.5 + 7 / 3, 0.25 + 5 / 2])


def test_values_may_be_half_precise_while_places_are_not() -> None:
    case = make_case(FOUR_LEVELS, queries=3, heads=2, places=3, channels=8)
    half = deformable_plain(case.values.half(), *case[1:])
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), deformable_plain(*case), atol=2e-3, rtol=2e-3)


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(
    ("sizes", "queries", "heads", "places", "channels"),
    [(FOUR_LEVELS, 5, 4, 9, 64), (FOUR_LEVELS, 7, 4, 4, 16), (TWO_LEVELS, 3, 3, 5, 24)],
)
def test_kernels_equal_the_definition(
    sizes: Sizes, queries: int, heads: int, places: int, channels: int
) -> None:
    from overt.ops.deformable_kernels import deformable_fused

    case = make_case(sizes, queries, heads, places, channels, DEVICE)
    flat = [side for size in sizes for side in size]
    inputs = [part.requires_grad_() for part in case[:4]]
    expected = deformable_plain(*case)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, gradient)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 5e-3)):
        result = deformable_fused(case.values.to(dtype), *case[1:4], flat)
        assert result.dtype == dtype
        found = torch.autograd.grad(result.float(), inputs, gradient)
        for value, target in zip((result, *found), (expected, *wanted), strict=True):
            error = (value.float() - target).norm() / target.norm()
            assert error < tolerance, (dtype, float(error))


@pytest.mark.gpu
@needs_kernels
def test_kernels_read_values_that_are_part_of_a_larger_tensor() -> None:
    from overt.ops.deformable_kernels import deformable_fused

    case = make_case(TWO_LEVELS, queries=3, heads=2, places=4, channels=16, device=DEVICE)
    wide = torch.cat([case.values, case.values], dim=-1)[..., :16]
    assert not wide.is_contiguous()
    flat = [side for size in TWO_LEVELS for side in size]
    found = deformable_fused(wide, *case[1:4], flat)
    torch.testing.assert_close(found, deformable_plain(*case), atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@needs_kernels
def test_the_operator_is_registered_as_compile_needs_it() -> None:
    from overt.ops.deformable_kernels import deformable_fused

    case = make_case(TWO_LEVELS, queries=3, heads=2, places=4, channels=16, device=DEVICE)
    inputs = [part.requires_grad_() for part in case[:4]]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(deformable_fused, (*inputs, [5, 7, 2, 3]), test_utils=checks)
