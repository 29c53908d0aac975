"""overt/nn/fp8.py: a rounded layer is, to the outside, the layer that it replaces."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from overt.nn.attention import Block
from overt.nn.ema import make_average, update_ema
from overt.nn.fp8 import Fp8Linear, quantize_linears
from overt.ops.linear_fp8.api import linear_fp8


def rounded(model: nn.Module) -> nn.Module:
    model = deepcopy(model).requires_grad_(False)
    quantize_linears(model)
    return model


def test_a_block_of_rounded_layers_is_almost_the_block() -> None:
    torch.manual_seed(0)
    block = Block(64, 4, layer_scale=1.0).requires_grad_(False)
    small = rounded(block)
    assert sum(isinstance(module, Fp8Linear) for module in small.modules()) == 4
    assert not any(isinstance(module, nn.Linear) for module in small.modules())
    tokens = torch.randn(2, 9, 64)
    with torch.no_grad():
        expected = block(tokens)
        error = (small(tokens) - expected).norm() / (expected - tokens).norm()
    assert 1e-3 < error < 0.1  # of the residual branches


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_compiled_block_is_almost_the_block() -> None:
    torch.manual_seed(0)
    block = Block(128, 2, layer_scale=1.0).requires_grad_(False).cuda()
    small = rounded(block).bfloat16()
    tokens = torch.randn(2, 33, 128, device="cuda")
    with torch.no_grad():
        expected = block(tokens)
        for function in (small, torch.compile(small, fullgraph=True)):
            found = function(tokens.bfloat16()).float()
            error = (found - expected).norm() / (expected - tokens).norm()
            assert 1e-3 < error < 0.1


def test_casting_the_module_leaves_the_scales_of_a_product_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = rounded(nn.Sequential(nn.Linear(40, 24))).bfloat16()
    seen: list[torch.dtype] = []

    def product(*tensors: torch.Tensor) -> torch.Tensor:
        seen.extend(tensor.dtype for tensor in tensors[:4])
        return linear_fp8(*tensors)

    monkeypatch.setattr("overt.nn.fp8.linear_fp8", product)
    with torch.no_grad():
        small(torch.randn(3, 40).bfloat16())
    assert seen == [torch.bfloat16, torch.uint8, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_block_hides_no_non_finite_token(bad: float) -> None:
    small = rounded(Block(64, 4))
    hidden = torch.randn(2, 9, 256)
    hidden[1, 4, 5] = bad
    small.mlp.fc1.forward = lambda tokens: hidden
    with torch.no_grad():
        finite = small.mlp(hidden[..., :64]).isfinite()
    assert not finite[1, 4].any()
    assert finite.all(-1).sum() == 2 * 9 - 1


def test_a_state_dict_is_that_of_the_layer_and_loads_bit_for_bit() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 24).bfloat16()
    small = rounded(nn.Sequential(layer))
    state = small.state_dict()
    assert set(state) == {"0.weight", "0.bias"}
    assert all(value.dtype == torch.bfloat16 for value in state.values())
    other = rounded(nn.Sequential(nn.Linear(40, 24).bfloat16()))
    other.load_state_dict(state)
    again = other.state_dict()
    assert all(torch.equal(again[name], state[name]) for name in state)
    # The weights of an ordinary layer, in any type, are rounded.
    wide = nn.Sequential(nn.Linear(40, 24))
    other.load_state_dict(wide.state_dict())
    error = (other[0].weight.float() - wide[0].weight.detach()).abs()
    assert (error <= 2.0**-4 * wide[0].weight.detach().abs() + 2.0**-16).all()
    wide.load_state_dict(other.state_dict())
    torch.testing.assert_close(wide[0].weight.detach(), other[0].weight.float(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("weight", None, r'Missing key\(s\).*"0.weight"'),
        ("bias", None, r'Missing key\(s\).*"0.bias"'),
        ("weight", (24, 41), r"size mismatch for 0.weight: \(24, 41\).*\(24, 40\)"),
        ("codes", (24, 40), r'Unexpected key\(s\).*"0.codes"'),
    ],
)
def test_a_state_dict_that_does_not_fit_is_refused(
    name: str, shape: tuple[int, ...] | None, message: str
) -> None:
    small = rounded(nn.Sequential(nn.Linear(40, 24)))
    state = dict(small.state_dict())
    if shape is None:
        del state[f"0.{name}"]
    else:
        state[f"0.{name}"] = torch.zeros(shape)
    with pytest.raises(RuntimeError, match=message):
        small.load_state_dict(state)


def test_conversions_and_averages_keep_the_numbers() -> None:
    small = rounded(nn.Sequential(nn.Linear(40, 24).bfloat16()))
    x = torch.randn(5, 40)
    before = small[0].weight.float()
    with torch.no_grad():
        expected = deepcopy(small).float()(x)
        for change in ("float", "bfloat16", "double", "float"):
            getattr(small, change)()
        torch.testing.assert_close(small(x), expected)
        average = make_average(small)
        update_ema(average, small, 0.9)
        torch.testing.assert_close(average(x), expected)
    torch.testing.assert_close(small[0].weight, before, rtol=0, atol=0)


def test_its_products_are_counted() -> None:
    small = rounded(nn.Sequential(nn.Linear(40, 24)))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        small(torch.randn(5, 3, 40))
    assert counter.get_total_flops() == 2 * 5 * 3 * 40 * 24
