"""Fixtures of the recorded cases."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

RANDOM = (
    "kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_",
    "xavier_uniform_",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases fill all weights: none is sampled before, and one that is not filled is NaN."""

    def mark(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor.data.fill_(math.nan)

    for name in RANDOM:
        monkeypatch.setattr(torch.nn.init, name, mark)
