"""overt/nn/ema.py: the average of the weights, its dtypes, its buffers, and skipped updates."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from overt.nn.ema import make_average, update_ema


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


@given(st.floats(0, 1), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_the_formula(momentum: float, updates: int) -> None:
    source = nn.Linear(2, 2, bias=False)
    average = make_average(source)
    expected = source.weight.detach().double().clone()
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        source.weight.data = torch.randn(2, 2, generator=generator)
        update_ema(average, source, momentum)
        expected = momentum * expected + (1 - momentum) * source.weight.detach().double()
    torch.testing.assert_close(average.weight.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("applied", [0.0, 1.0])
def test_a_skipped_update_leaves_the_average_bit_for_bit(applied: float) -> None:
    source = network()
    average, reference = make_average(source), make_average(source)
    for parameter in source.parameters():
        parameter.data += 1.0
    update_ema(average, source, 0.9, torch.tensor(applied))
    if applied:
        update_ema(reference, source, 0.9)
    for one, other in zip(average.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)


def test_buffers_are_copied_not_averaged() -> None:
    source = network()
    average = make_average(source)
    source(torch.randn(4, 3))
    update_ema(average, source, 0.9)
    assert average[1].num_batches_tracked == 1
    assert torch.equal(average[1].running_mean, source[1].running_mean)


def test_the_average_is_a_frozen_float32_copy_in_evaluation_mode() -> None:
    source = network().to(torch.bfloat16)
    average = make_average(source)
    assert not average.training
    assert source.training
    assert all(not value.requires_grad for value in average.parameters())
    assert all(value.dtype == torch.float32 for value in average.parameters())
    # Steps far below the resolution of bfloat16 still add up.
    source[0].weight.data.fill_(1.0)
    average[0].weight.data.fill_(0.0)
    update_ema(average, source, 0.9999)
    assert torch.allclose(average[0].weight, torch.tensor(1e-4), rtol=1e-3)


def test_large_tensors_move_like_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    source = network()
    limits = (1, 3, 9, 10**9)  # 3 and 9: exactly the sizes of its tensors
    averages = [make_average(source) for _ in limits]
    for parameter in source.parameters():
        parameter.data += 1.0
    for average, limit in zip(averages, limits, strict=True):
        monkeypatch.setattr("overt.nn.ema.LARGE", limit)
        update_ema(average, source, 0.9, torch.tensor(1.0))
    for values in zip(*(average.parameters() for average in averages), strict=True):
        for value in values[1:]:
            torch.testing.assert_close(value, values[0])
