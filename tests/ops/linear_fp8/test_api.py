"""overt/ops/linear_fp8: what 8-bit floats round off is bounded, wherever they are multiplied."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from overt.ops.linear_fp8.api import linear_fp8
from overt.ops.linear_fp8.kernels import product_fp8
from overt.ops.linear_fp8.plain import FLOAT8, dequantize, product_plain, quantize_rows

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def inputs(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Inputs of different sizes, and the codes, scales and bias of a layer."""
    torch.manual_seed(0)
    x = torch.randn(3, 70, 128) * torch.logspace(-6, 6, 70)[:, None]
    codes, scales = quantize_rows(torch.randn(64, 128) * torch.logspace(-3, 3, 64)[:, None])
    bias = torch.randn(64)
    return [
        x.to(device, dtype),
        codes.view(torch.uint8).to(device),
        scales.to(device),
        bias.to(device, dtype),
    ]


@given(exponent=st.integers(-90, 126), spread=st.floats(0, 30), seed=st.integers(0, 1000))
def test_a_number_is_off_by_a_sixteenth_of_itself_at_most(
    exponent: int, spread: float, seed: int
) -> None:
    """Or by 2 ** -16 of the largest of its row, whatever the size of that."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 50, generator=generator) * 2 - 1
    x *= 2.0 ** (exponent - spread * torch.rand(2, 50, generator=generator).double())
    x = x.float()
    codes, scales = quantize_rows(x)
    assert codes.dtype == FLOAT8
    assert scales.shape == (2, 1)
    rounded = dequantize(codes, scales, torch.float32)
    largest = x.abs().amax(-1, keepdim=True)
    assert ((rounded - x).abs() <= 2.0**-4 * x.abs() + 2.0**-16 * largest).all()
    # Rounding again changes nothing, nor does bfloat16: what is saved is what was used.
    again = dequantize(*quantize_rows(rounded.bfloat16()), torch.float32)
    torch.testing.assert_close(again, rounded, rtol=0, atol=0)


def test_rows_without_size_or_of_the_largest_stay_finite() -> None:
    x = torch.tensor([[0.0, -0.0], [1e-44, -1e-38], [3.2e38, -1e38], [-3e38, 2e38]])
    codes, scales = quantize_rows(x)
    assert scales.isfinite().all()
    rounded = dequantize(codes, scales, torch.float32)
    torch.testing.assert_close(rounded, x, rtol=2.0**-4, atol=2.0**-100)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_non_finite_input_has_no_finite_output(bad: float) -> None:
    x, *layer = inputs()
    x[1, 3, 5] = bad
    finite = linear_fp8(x, *layer).isfinite()
    assert not finite[1, 3].any()
    finite[1, 3] = True
    assert finite.all()


def test_the_layer_is_off_by_four_percent() -> None:
    layer = nn.Linear(256, 64)
    x = torch.randn(100, 256) * torch.logspace(-3, 3, 100)[:, None]
    codes, scales = quantize_rows(layer.weight.detach())
    found = linear_fp8(x, codes.view(torch.uint8), scales, torch.zeros(64))
    expected = F.linear(x, layer.weight.detach())
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.mean() < 0.04
    assert errors.max() < 0.08


def test_with_a_gradient_it_is_refused() -> None:
    x, *layer = inputs()
    with pytest.raises(AssertionError, match=r"no gradient.*no_grad"):
        linear_fp8(x.requires_grad_(), *layer)
    with torch.no_grad():
        assert not linear_fp8(x, *layer).requires_grad


def test_it_is_compiled_in_one_piece() -> None:
    x, *layer = inputs(dtype=torch.bfloat16)
    compiled = torch.compile(linear_fp8, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, *layer), linear_fp8(x, *layer))


def test_products_of_the_kernel_are_counted() -> None:
    x, *layer = inputs(dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        result = product_fp8(*quantize_rows(x), *layer)
    assert (result.shape, result.dtype) == ((3, 70, 64), torch.bfloat16)
    assert counter.get_total_flops() == 2 * 3 * 70 * 128 * 64


@gpu
@needs_gpu
@pytest.mark.parametrize("compiles", [False, True])
def test_on_cuda_one_kernel_gives_the_same(compiles: bool) -> None:
    x, *layer = inputs("cuda", torch.bfloat16)
    function = torch.compile(linear_fp8, fullgraph=True) if compiles else linear_fp8
    with torch.inference_mode():
        found = function(x, *layer)
    assert found.dtype == torch.bfloat16
    expected = product_plain(*quantize_rows(x.float()), *layer[:2], layer[2].float())
    errors = (found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.max() < 0.01
    x[1, 3, 5] = float("nan")
    with torch.inference_mode():
        assert function(x, *layer).isfinite().all(-1).sum() == 3 * 70 - 1


def keep_promises(arguments: tuple[Tensor, ...]) -> None:
    """All of torch's checks but one, which multiplies 8-bit floats to compare them."""
    names = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(product_fp8, arguments, test_utils=names)


def test_an_older_device_computes_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    x, *layer = inputs(dtype=torch.bfloat16)
    arguments = (*quantize_rows(x), *layer)
    torch.testing.assert_close(product_fp8(*arguments), linear_fp8(x, *layer))
    keep_promises(arguments)


@gpu
@needs_gpu
def test_the_operator_keeps_its_promises_to_compile() -> None:
    x, *layer = inputs("cuda", torch.bfloat16)
    keep_promises((*quantize_rows(x), *layer))
