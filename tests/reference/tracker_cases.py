"""What all checks of CoTracker3's cases share: the filled model and comparisons."""

from typing import Any

import torch
from fill_rule import fill
from torch import Tensor

from overt.recipes.cotracker3.model import CoTracker3, CoTracker3Offline
from overt.recipes.cotracker3.online import CoTracker3Online

Case = dict[str, Any]
Tensors = dict[str, Tensor]


def build_model(case: Case) -> CoTracker3:
    """The case's model with the weights that the rule and the case give it."""
    model_class = CoTracker3Online if case.get("model") == "online" else CoTracker3Offline
    model = fill(model_class(**case["model_kwargs"])).eval()
    state = model.state_dict()
    for key, factor in case.get("after_fill_multiply", {}).items():
        state[key].mul_(factor)
    return model


def assert_within(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def assert_relative(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Within a part of the tensor's largest entry."""
    assert_within(actual, expected, tolerance * expected.abs().max().item())
