"""overt/ops/deformable/plain.py: the definition against plain loops."""

import pytest
import torch
from deformable_cases import FOUR_LEVELS, TWO_LEVELS, Case, make_case
from torch import Tensor

from overt.ops.deformable.plain import Sizes, deformable_plain, sampling_locations


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
