"""overt/ops/gelu.py: result and gradient on ARM processors are those of torch."""

import pytest
import torch
from torch.nn import functional as F

from overt.ops import onednn
from overt.ops.gelu import gelu


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
