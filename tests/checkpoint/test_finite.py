"""overt/checkpoint/finite.py: poisoned weights are found, whatever their type; masks are not."""

import math

import pytest
import torch
from torch import nn

from overt.checkpoint.finite import nonfinite_tensors


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e37, -2e18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bad_weight_is_named(value: float, dtype: torch.dtype) -> None:
    model, average = nn.Linear(3, 2).to(dtype), nn.Linear(3, 2)
    assert nonfinite_tensors(model, None, average) == []
    with torch.no_grad():
        model.weight[1, 2] = value
        average.bias[0] = value
    assert sorted(nonfinite_tensors(model, None, average)) == ["bias", "weight"]


def test_large_weights_are_finite() -> None:
    model = nn.Linear(1000, 2)
    nn.init.constant_(model.weight, 9e17)  # the sum of their squares is not
    assert nonfinite_tensors(model) == []


def test_a_buffer_may_hold_infinity_but_not_nan() -> None:
    model = nn.BatchNorm1d(3)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    model.register_buffer("computed", torch.tensor(math.nan), persistent=False)
    assert nonfinite_tensors(model) == []
    model.running_mean[1] = math.nan
    assert nonfinite_tensors(model) == ["running_mean"]


def test_a_buffer_may_hold_nan_where_its_module_says_so_by_name() -> None:
    class Monitor(nn.Module):
        nan_buffers = ("numbers",)

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("numbers", torch.full((2,), torch.nan))
            self.register_buffer("others", torch.full((2,), torch.nan))

    monitor = Monitor()
    assert nonfinite_tensors(monitor) == ["others"]
    assert nonfinite_tensors(nn.Sequential(monitor)) == ["0.others"]
