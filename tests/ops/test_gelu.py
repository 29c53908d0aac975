"""overt/ops/gelu.py: result and gradient on ARM processors are those of torch."""

import pytest
import torch
from torch.nn import functional as F

from overt.ops import onednn
from overt.ops.gelu import gelu, largest_gelu, tanh_gelu


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_result_and_gradient_are_those_of_torch(
    approximate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "IS_ARM", True)
    x = torch.randn(5, 70, requires_grad=True)
    toward = torch.randn(5, 70)
    results = []
    for y in (gelu(x, approximate), F.gelu(x, approximate=approximate)):
        results.append((y, *torch.autograd.grad(y, x, toward)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tanh_form_by_a_sigmoid_is_that_of_torch(dtype: torch.dtype) -> None:
    x = torch.linspace(-30, 30, 1001).to(dtype)
    expected = F.gelu(x.float(), approximate="tanh").to(dtype)
    torch.testing.assert_close(
        tanh_gelu(x), expected, rtol=8e-3 if dtype == torch.bfloat16 else 1e-5, atol=1e-6
    )


def test_the_bound_of_a_row_is_its_largest_magnitude_or_that_of_the_minimum() -> None:
    x = torch.randn(200, 50) * torch.logspace(-3, 3, 200)[:, None] - 0.5
    largest = tanh_gelu(x).abs().amax(-1, keepdim=True)
    expected = largest.clamp_min(0.1701)
    torch.testing.assert_close(largest_gelu(x), expected)
    for bad in (torch.inf, torch.nan):
        x[3, 7] = bad
        assert not largest_gelu(x)[3].isfinite()
