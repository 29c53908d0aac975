"""Where kernels are tested: on CUDA, or, logic only, by Triton's interpreter on the CPU."""

import os

import pytest
import torch
from torch import Tensor

from overt.ops.dispatch import HAS_TRITON

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = DEVICE == "cuda"
CAN_RUN = HAS_TRITON and (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1")


def kernel_test(function):
    """Marks a test that compares a kernel with its definition."""
    reason = "needs Triton and a CUDA device (or TRITON_INTERPRET=1)"
    return pytest.mark.gpu(pytest.mark.skipif(not CAN_RUN, reason=reason)(function))


def assert_same_results(fused, plain, inputs: list[Tensor], tolerance: float = 1e-5) -> None:
    """Values and gradients of two functions, relative to the largest."""
    sides = []
    for function in (fused, plain):
        own = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        result = function(*own)
        generator = torch.Generator().manual_seed(0)
        gradient = torch.randn(result.shape, generator=generator).to(result.device, result.dtype)
        sides.append([result, *torch.autograd.grad(result, own, gradient)])
    for found, expected in zip(*sides, strict=True):
        error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
        assert error <= tolerance, f"relative error {error:.2e}"
