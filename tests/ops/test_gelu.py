"""overt/ops/gelu.py: result and gradient on ARM processors are those of torch."""

import pytest
import torch
from torch.nn import functional as F

from overt.ops import onednn
from overt.ops.gelu import gelu, tanh_gelu


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
