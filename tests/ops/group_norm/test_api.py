"""overt/ops/group_norm/api.py: when the kernels serve."""

import pytest
import torch

from overt.ops.dispatch import KERNELS, can_serve
from overt.ops.group_norm.api import group_norm
from overt.ops.group_norm.plain import group_norm_plain


def test_the_cpu_has_the_definition() -> None:
    x, residual = torch.randn(2, 2, 8, 5, 7).unbind(0)
    weight, bias = torch.randn(2, 8).unbind(0)
    found = group_norm(x, weight, bias, 2, relu=True, residual=residual)
    assert torch.equal(found, group_norm_plain(x, weight, bias, 2, 1e-5, True, residual))


@pytest.mark.parametrize(("width", "serves"), [(3, True), (1024, True), (1025, False)])
def test_very_wide_groups_have_the_definition(width: int, serves: bool) -> None:
    kernels = KERNELS["group_norm"]
    found = can_serve(kernels, "cuda", torch.bfloat16, deterministic=True, width=width)
    assert found == serves
