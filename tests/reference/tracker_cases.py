"""What all checks of CoTracker3's cases share: the filled model and comparisons."""

import json
from copy import deepcopy
from functools import lru_cache
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
    is_online = case.get("model") == "online"
    model = deepcopy(_filled(is_online, json.dumps(case["model_kwargs"])))
    state = model.state_dict()
    for key, factor in case.get("after_fill_multiply", {}).items():
        state[key].mul_(factor)
    return model


@lru_cache(maxsize=2)  # most cases share one of two
def _filled(is_online: bool, options: str) -> CoTracker3:
    model_class = CoTracker3Online if is_online else CoTracker3Offline
    return fill(model_class(**json.loads(options))).eval()


def assert_within(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def assert_relative(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Within a part of the tensor's largest entry."""
    bound = tolerance * expected.abs().max().item() if expected.numel() else 0.0
    assert_within(actual, expected, bound)
