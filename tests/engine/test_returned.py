"""overt/engine/returned.py: a hook that returns something else is an error for its author."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_recipe.recipe import Toy
from toy_runs import make_trainer

from overt.engine.returned import EXPECTED, in_words, returned
from overt.errors import ConfigError
from overt.recipe import HOOKS, StepOutput

ZERO = torch.zeros(())
LAYER = nn.Linear(2, 2)
OUTPUT = StepOutput({"l1": ZERO})
# A hook, what it returns by mistake, and how that is named.
WRONG: list[tuple[str, Any, str]] = [
    ("build_model", [LAYER], "a list of Linear"),
    ("loss", None, "None"),
    ("loss", {"l1": ZERO}, "a dict of 'l1': Tensor"),
    ("loss", (ZERO, ZERO), "a tuple of Tensor, Tensor"),
    ("loss", OUTPUT, "a StepOutput whose loss has no gradient"),
    ("counts", torch.ones(3), r"a Tensor of shape \(3,\)"),
    ("counts", {"points": 1}, "a dict of 'points': 1"),
    ("parameter_groups", {"params": []}, "a dict of 'params': list"),
    ("parameter_groups", [list(LAYER.named_parameters())], "a list of list"),
    ("blocks", LAYER, "a Linear"),
    ("blocks", ["first"], "a list of 'first'"),
    ("replays_at", None, "None"),
    ("custom_step", True, "True"),
    ("custom_step", ([OUTPUT], 1.0, 1), "a tuple of list, 1.0, 1"),
    ("custom_step", ([], ZERO, ZERO), "a tuple of list, Tensor, Tensor"),
    ("evaluation_sets", ["far"], "a list of 'far'"),
    ("evaluation_sets", {"far": 3}, "a dict of 'far': 3"),
    ("visualize", [ZERO], "a list of Tensor"),
    ("finished", True, "True"),
    ("state_dict", None, "None"),
    ("state_dict", {1: 2}, "a dict of 1: 2"),
]


def returning(hook: str, value: Any) -> Callable[[Any], Toy]:
    def method(self: Any, *arguments: Any) -> Any:
        return value

    return type("Mine", (Toy,), {hook: method})


@pytest.mark.parametrize(("hook", "value", "words"), WRONG)
def test_a_wrong_type_is_named_with_what_is_expected_and_where(
    hook: str, value: Any, words: str, tmp_path: Path
) -> None:
    settings = ["training.num_steps=2", "training.evaluate_every_steps=1"]
    with pytest.raises(ConfigError, match=rf"Mine\.{hook} returned {words}; expected ") as refused:
        make_trainer(tmp_path, *settings, recipe=returning(hook, value)).train()
    assert f"({__file__}, line " in str(refused.value)


@pytest.mark.parametrize("hook", ["fit_memory", "compile_units", "shard_units"])
def test_hooks_that_a_cpu_alone_does_not_call(hook: str) -> None:
    recipe: Any = object.__new__(Toy)
    with pytest.raises(ConfigError, match=rf"Toy\.{hook} returned 3; expected "):
        returned(recipe, hook, 3)


def test_what_the_engine_takes_comes_back() -> None:
    recipe: Any = object.__new__(Toy)
    loss = StepOutput({"l1": LAYER.weight.sum()})
    taken: list[tuple[str, Any]] = [
        ("loss", loss),
        ("blocks", nn.ModuleList([LAYER])),
        ("blocks", (LAYER,)),
        ("shard_units", []),
        ("replays_at", 2),
        ("custom_step", None),
        ("custom_step", ([OUTPUT], ZERO, ZERO)),
        ("fit_memory", "blocks recomputed"),
        ("finished", None),
        ("visualize", None),
        ("parameter_groups", None),
        ("state_dict", {"queue": ZERO, "filled": 3}),
    ]
    for hook, value in taken:
        assert returned(recipe, hook, value) is value
    assert EXPECTED.keys() <= HOOKS.keys()


def test_a_value_takes_one_short_line() -> None:
    many: dict[str, Tensor] = {f"name_{number}": ZERO for number in range(1000)}
    assert len(in_words(many)) < 200
    assert len(in_words("x" * 1000)) < 200
    assert in_words([]) == "a list of nothing"
