"""overt/recipe.py: a recipe that would quietly train something else is refused, by name."""

import importlib
import inspect
import re
from abc import ABC
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from toy_recipe.recipe import Toy
from toy_runs import HERE, TOY

from overt.config import CONF
from overt.errors import ConfigError
from overt.recipe import HOOKS, REQUIRED, Recipe, StepOutput, check_instance, check_recipe
from overt.train import main


def with_method(name: str, method: Callable[..., Any]) -> type[Recipe]:
    """A recipe that would work but for one method."""
    return type("Mine", (Toy,), {name: method, "__module__": "mine"})


def refusal(kind: object) -> str:
    with pytest.raises(ConfigError) as refused:
        check_recipe(kind)
    return str(refused.value)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("after_steps", "after_step"),
        ("count", "counts"),
        ("visualise", "visualize"),
        ("vizualise", "visualize"),
        ("onto_device", "on_device"),
        ("parameter_group", "parameter_groups"),
        ("compile_unit", "compile_units"),
        ("finish", "finished"),
        ("example_batches", "example_batch"),
        ("load_statedict", "load_state_dict"),
    ],
)
def test_a_method_that_is_nearly_a_hook(misspelt: str, meant: str) -> None:
    text = refusal(with_method(misspelt, lambda self, *_: None))
    assert f"mine.Mine.{misspelt} is not a hook and would never be called" in text
    assert f"did you mean {meant}?" in text
    assert "leading underscore" in text


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("unscored", "head.", r"unscored='head\.'; expected a tuple of prefixes"),
        ("replayable", None, "replayable=None; expected True or False, or a text"),
        ("gathers_carry", "yes", "gathers_carry='yes'; expected True or False$"),
    ],
)
def test_an_attribute_of_a_wrong_type(attribute: str, value: Any, words: str) -> None:
    kind: Any = type("Mine", (Toy,), {attribute: value})
    with pytest.raises(ConfigError, match=words):
        check_instance(kind(None))


@pytest.mark.parametrize("part", ["losses", "metrics", "carry"])
def test_a_step_output_of_something_else(part: str) -> None:
    held: dict[str, Any] = {"losses": {"l1": torch.zeros(())}, part: torch.zeros(())}
    with pytest.raises(ConfigError, match=f"StepOutput holds {part}, a Tensor; expected a dict"):
        StepOutput(**held)


def three_arguments(self: Any, model: Any, step: int, applied: Any) -> None: ...


def too_many(self: Any, batch: Any, step: int) -> dict[str, Any]:
    return {}


def keyword_only(self: Any, *, scores: dict[str, float]) -> None: ...


@pytest.mark.parametrize(
    ("hook", "method", "call"),
    [
        ("after_step", three_arguments, "after_step(self, model, step, applied, carry)"),
        ("counts", too_many, "counts(self, batch)"),
        ("finished", keyword_only, "finished(self, scores)"),
    ],
)
def test_a_hook_that_cannot_be_called_as_one(
    hook: str, method: Callable[..., Any], call: str
) -> None:
    text = refusal(with_method(hook, method))
    assert f"mine.Mine.{hook}(" in text
    assert f"cannot be called as {call}" in text


def test_a_hook_of_a_class_in_between() -> None:
    between = with_method("after_steps", three_arguments)
    assert "did you mean after_step?" in refusal(type("Below", (between,), {}))


class Mixin:
    def after_steps(self, model: object) -> None: ...


@pytest.mark.parametrize(
    ("bases", "members", "words"),
    [
        ((Mixin,), {}, "did you mean after_step?"),
        ((), {"visualise": staticmethod(lambda model: {})}, "did you mean visualize?"),
        ((), {"count": classmethod(lambda cls, batch: {})}, "did you mean counts?"),
        ((), {"counts": staticmethod(lambda a, b: {})}, "cannot be called as counts(self, batch)"),
        ((), {"gather_carry": True}, "did you mean gathers_carry?"),
        ((), {"replayble": property(lambda self: True)}, "did you mean replayable?"),
        ((), {"replayable": lambda self: True}, "is a method, and the engine reads a value"),
        ((), {"blocks": ["a"]}, "takes the place of the hook blocks"),
    ],
)
def test_static_methods_attributes_and_mixins(
    bases: tuple[type, ...], members: dict[str, object], words: str
) -> None:
    assert words in refusal(type("Mine", (*bases, Toy), members))


def test_static_hooks_and_properties_pass() -> None:
    members = {"counts": staticmethod(lambda batch: {}), "replayable": property(lambda self: True)}
    check_recipe(type("Mine", (Toy,), members))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gather_carry", True, "did you mean gathers_carry?"),
        ("blocks", 12, "hides the hook blocks"),
    ],
)
def test_what_init_sets(name: str, value: object, words: str) -> None:
    recipe = object.__new__(Toy)
    check_instance(recipe)
    setattr(recipe, name, value)
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_instance(recipe)


def test_a_class_that_does_not_derive() -> None:
    class Looks:
        build_model = build_dataset = collate = loss = evaluate = None

    for kind in (Looks, Toy.loss, "toy"):
        assert "does not derive from overt.Recipe" in refusal(kind)
    assert "class Looks(Recipe)" in refusal(Looks)


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_recipe_that_lacks_a_required_hook(missing: str) -> None:
    own = {name: getattr(Toy, name) for name in REQUIRED if name != missing}
    text = refusal(type("Lacks", (Recipe,), own))
    assert f"Lacks has no {missing};" in text
    assert all(name in text for name in REQUIRED)


def test_five_hooks_are_required_and_all_are_documented() -> None:
    assert REQUIRED == ("build_dataset", "build_model", "collate", "evaluate", "loss")
    assert all(inspect.getdoc(hook) for hook in HOOKS.values())


def test_nothing_is_built_of_a_refused_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line: one line, no traceback, and no file is written."""
    monkeypatch.setattr(Toy, "after_steps", three_arguments, raising=False)
    words = ["--package", str(TOY), "recipe=toy", f"output_dir={tmp_path}"]
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("ConfigError: toy_recipe.recipe.Toy.after_steps is not a hook")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# --- what is let through --------------------------------------------------------------------------


def shipped() -> set[str]:
    """The classes of all recipes that come with overt or its examples, by the text of their YAML.

    Composing all of them would take every process of the suite ten seconds.
    """
    files = [*(CONF / "recipe").glob("*.yaml"), *HERE.parent.glob("examples/*/conf/recipe/*.yaml")]
    targets = [OmegaConf.load(file).get("recipe", {}).get("_target_") for file in files]
    return {target for target in targets if target is not None}


SHIPPED = sorted(shipped())


def test_all_recipes_are_looked_at() -> None:
    assert len(SHIPPED) >= 9
    assert any(target.startswith("own_recipe.") for target in SHIPPED)


@pytest.mark.parametrize("target", SHIPPED)
def test_every_shipped_recipe_passes(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE.parent / "examples"))
    module, _, name = target.rpartition(".")
    check_recipe(getattr(importlib.import_module(module), name))


def test_methods_of_ones_own_and_hooks_with_more_defaults_pass() -> None:
    def more(self: Any, model: Any, step: int, applied: Any, carry: Any, warm: int = 3) -> None: ...

    def other_names(self: Any, network: Any, *rest: Any) -> None: ...

    check_recipe(with_method("after_step", more))
    check_recipe(with_method("after_step", other_names))
    for name in ("track_points", "targets", "_after_steps", "scorer"):
        check_recipe(with_method(name, lambda self: None))


def test_the_defaults_do_nothing() -> None:
    recipe = type("Least", (Recipe,), {name: getattr(Toy, name) for name in REQUIRED})()
    assert isinstance(recipe, ABC)
    batch = object()
    assert recipe.counts(batch) == {}
    assert recipe.on_device(batch) is batch
    assert recipe.parameter_groups(None) is None
    assert recipe.blocks(None) == recipe.compile_units(None) == recipe.shard_units(None) == []
    assert recipe.custom_step(None, [], {}) is None
    assert recipe.finished({"error": 1.0}) is None
    assert recipe.state_dict() == {}
    assert recipe.visualize(None) == {}
    assert recipe.replays_at(3)
    assert (recipe.replayable, recipe.stackable, recipe.gathers_carry) == (False, True, False)
    with pytest.raises(ConfigError, match=r"Least has no example_batch\(self, size\)"):
        recipe.example_batch(2)


# --- what a step returns --------------------------------------------------------------------------


def test_the_total_is_the_sum_of_the_terms_and_scales_with_them() -> None:
    terms = {name: torch.tensor(value) for name, value in {"a": 1.0, "b": 2.0, "c": 0.5}.items()}
    output = StepOutput(terms, {"size": torch.tensor(4.0)}, {"keys": torch.ones(2, 3)})
    assert float(output.total) == 3.5
    half = output.scaled(0.5)
    assert {name: float(term) for name, term in half.losses.items()} == {
        "a": 0.5,
        "b": 1,
        "c": 0.25,
    }
    assert float(half.metrics["size"]) == 2.0
    assert float(half.total) == 1.75
    assert half.carry is output.carry  # no part of the loss


@pytest.mark.parametrize(
    ("losses", "metrics", "message"),
    [
        ({}, {}, "holds no loss"),
        (
            {"fit": torch.ones(3, 2)},
            {},
            r"holds fit, a Tensor of shape \(3, 2\); expected a tensor",
        ),
        ({"fit": torch.ones(())}, {"right": 0.5}, "holds right, a float; expected a tensor"),
        ({"fit": torch.ones(())}, {"right": np.float32(1)}, "holds right, a float32 of shape"),
    ],
)
def test_a_step_that_returns_no_numbers_is_refused(losses: Any, metrics: Any, message: str) -> None:
    """In the recipe's own loss, not in a traceback of the engine at the next log line."""
    with pytest.raises(ConfigError, match=message):
        StepOutput(losses, metrics)


def test_a_term_of_zero_keeps_its_graph() -> None:
    """A padding micro-batch counts for nothing, and yet every parameter gets a gradient."""
    weight = torch.ones(2, requires_grad=True)
    StepOutput({"a": weight.sum()}).scaled(0.0).total.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0, 0.0]
