"""overt/ops/linear_gelu: the layer and its GELU at once are the two one after the other."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from overt.ops.linear_gelu.api import linear_gelu
from overt.ops.linear_gelu.kernels import linear_gelu_fused

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def inputs(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = [(3, 5, 16), (64, 16), (64,)]
    return [torch.randn(shape).to(device, dtype) for shape in shapes]


def test_with_gradient_or_without_kernels_it_is_the_definition() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in inputs("cpu", torch.float32))
    expected = F.gelu(F.linear(x, weight, bias), approximate="tanh")
    assert torch.equal(linear_gelu(x, weight, bias), expected)
    with torch.no_grad():
        assert torch.equal(linear_gelu(x, weight, bias), expected)
    gradients = torch.autograd.grad(linear_gelu(x, weight, bias).sum(), (x, weight, bias))
    for one, other in zip(
        gradients, torch.autograd.grad(expected.sum(), (x, weight, bias)), strict=True
    ):
        assert torch.equal(one, other)


def test_its_products_are_counted() -> None:
    """By `overt plan` and by runs, which know an operator by its formula alone."""
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        linear_gelu_fused(*inputs("cpu", torch.bfloat16))
    assert counter.get_total_flops() == 2 * 3 * 5 * 16 * 64


@gpu
@needs_gpu
@pytest.mark.parametrize("compiles", [False, True])
def test_on_cuda_one_kernel_gives_the_same(compiles: bool) -> None:
    x, weight, bias = inputs("cuda", torch.float32)
    expected = F.gelu(F.linear(x, weight, bias), approximate="tanh")
    function = torch.compile(linear_gelu) if compiles else linear_gelu
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        found = function(x, weight, bias)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 1e-2 * expected.norm()


@gpu
@needs_gpu
def test_the_operator_keeps_its_promises_to_compile() -> None:
    torch.library.opcheck(linear_gelu_fused, tuple(inputs("cuda", torch.float16)))
