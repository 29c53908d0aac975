"""overt/ops/deformable/kernels.py against the definition."""

import pytest
import torch
from deformable_cases import FOUR_LEVELS, TWO_LEVELS, make_case
from kernel_tests import DEVICE, kernel_test

from overt.ops.deformable.plain import Sizes, deformable_plain


@kernel_test
@pytest.mark.parametrize(
    ("sizes", "queries", "heads", "places", "channels"),
    [(FOUR_LEVELS, 5, 4, 9, 64), (FOUR_LEVELS, 7, 4, 4, 16), (TWO_LEVELS, 3, 3, 5, 24)],
)
def test_kernels_equal_the_definition(
    sizes: Sizes, queries: int, heads: int, places: int, channels: int
) -> None:
    from overt.ops.deformable.kernels import deformable_fused

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


@kernel_test
def test_kernels_read_values_that_are_part_of_a_larger_tensor() -> None:
    from overt.ops.deformable.kernels import deformable_fused

    case = make_case(TWO_LEVELS, queries=3, heads=2, places=4, channels=16, device=DEVICE)
    wide = torch.cat([case.values, case.values], dim=-1)[..., :16]
    assert not wide.is_contiguous()
    flat = [side for size in TWO_LEVELS for side in size]
    found = deformable_fused(wide, *case[1:4], flat)
    torch.testing.assert_close(found, deformable_plain(*case), atol=1e-5, rtol=1e-4)


@kernel_test
def test_the_operator_is_registered_as_compile_needs_it() -> None:
    from overt.ops.deformable.kernels import deformable_fused

    case = make_case(TWO_LEVELS, queries=3, heads=2, places=4, channels=16, device=DEVICE)
    inputs = [part.requires_grad_() for part in case[:4]]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(deformable_fused, (*inputs, [5, 7, 2, 3]), test_utils=checks)
