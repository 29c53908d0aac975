"""overt/ops/dropout/kernels.py drops what the definition drops."""

import pytest
import torch
from kernel_tests import DEVICE, kernel_test

from overt.ops.dropout.plain import dropout_plain

SEEDS = (0, 1, 12345678901234567, 2**62 - 1)


@kernel_test
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("site", [0, 63])
def test_the_kernel_drops_what_the_definition_drops(seed: int, site: int) -> None:
    from overt.ops.dropout.kernels import dropout_fused

    given = torch.tensor(seed, device=DEVICE)
    x = torch.randn(3, 1111, device=DEVICE, requires_grad=True)
    expected, found = dropout_plain(x, given, site, 0.1), dropout_fused(x, given, site, 0.1)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found == 0, expected == 0)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(gradient == 0, expected == 0)
