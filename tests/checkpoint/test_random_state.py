"""overt/checkpoint/random_state.py: every global generator resumes where it was."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from overt.checkpoint.random_state import capture, restore, undisturbed


def draws() -> list[Any]:
    # Normal draws come in pairs: the second one of a pair is kept between calls.
    normal = [random.gauss(0, 1), float(np.random.standard_normal())]
    return [*normal, random.random(), float(np.random.rand()), torch.rand(3).tolist()]


@pytest.mark.parametrize("before", range(3), ids=["no pair", "half a pair", "a whole pair"])
def test_what_was_captured_is_drawn_again(before: int) -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    for _ in range(before):
        draws()
    states = capture()
    expected = [draws() for _ in range(3)]
    random.seed(6)
    np.random.seed(6)
    torch.manual_seed(6)
    assert draws() != expected[0]
    restore(states)
    assert [draws() for _ in range(3)] == expected


def test_a_state_is_tensors_only_and_its_own_copy() -> None:
    states = capture()
    before = {name: value.clone() for name, value in states.items()}
    draws()
    assert all(
        torch.equal(value, before[name]) or value.isnan().all() for name, value in states.items()
    )


def fail() -> None:
    with undisturbed():
        draws()
        raise RuntimeError("in the middle")


def test_undisturbed_also_by_an_error() -> None:
    states = capture()
    expected = draws()
    restore(states)
    with undisturbed():
        draws()
    with pytest.raises(RuntimeError):
        fail()
    assert draws() == expected
