"""What a hook of a recipe returned, checked where the engine takes it.

A wrong type is an error for the author of the recipe: what was returned, what is expected, where.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from overt.errors import ConfigError
from overt.recipe import Recipe, StepOutput

Value = TypeVar("Value")


def returned(recipe: Recipe, hook: str, value: Value) -> Value:
    """Return what `recipe.hook` returned; refused where the engine cannot take it."""
    accepts, expected = EXPECTED[hook]
    if not accepts(value):
        raise ConfigError(
            f"{type(recipe).__qualname__}.{hook} returned {in_words(value)}; expected {expected}"
            f"{_place(getattr(recipe, hook))}"
        )
    return value


def in_words(value: object) -> str:
    """Describe a value of any type on one line."""
    kind = type(value).__name__
    if _is_plain(value):
        return repr(value)[:80]
    if isinstance(value, StepOutput):
        return f"a {kind}{'' if value.total.requires_grad else ' whose loss has no gradient'}"
    if isinstance(value, Tensor):
        return f"a {kind} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        held = [f"{key!r}: {_kind(item)}" for key, item in value.items()]
        return f"a {kind} of {', '.join(held)[:120] or 'nothing'}"
    if isinstance(value, list | tuple):
        return f"a {kind} of {', '.join(map(_kind, value))[:120] or 'nothing'}"
    return f"a {kind}"


def _kind(value: object) -> str:
    return repr(value)[:20] if _is_plain(value) else type(value).__name__


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _place(hook: Callable[..., Any]) -> str:
    """Return the file and line of a method, where it has one."""
    code = getattr(inspect.unwrap(hook), "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def _are(values: object, kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)  # type: ignore[attr-defined]


def _names(value: object) -> bool:
    return isinstance(value, Mapping) and _are(value, str)


def _modules(value: object) -> bool:
    return isinstance(value, Sequence | nn.ModuleList) and _are(value, nn.Module)


def _step(value: object) -> bool:
    if not (isinstance(value, tuple | list) and len(value) == 3):
        return False
    outputs, *numbers = value
    is_list = isinstance(outputs, tuple | list) and len(outputs) > 0
    return is_list and _are(outputs, StepOutput) and _are(numbers, Tensor)


_MODULES = "a list of modules of the model, empty where there are none"
# Whether the engine can take a value, and what to return instead.
EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "build_model": (lambda value: isinstance(value, nn.Module), "a torch.nn.Module"),
    "loss": (
        lambda value: isinstance(value, StepOutput) and value.total.requires_grad,
        'an overt.StepOutput, such as StepOutput({"l1": errors.sum() / counts["samples"]}), of '
        "losses that depend on what is trained",
    ),
    "counts": (
        lambda value: _names(value) and _are(value.values(), Tensor),
        'a dict of tensors by name, such as {"points": mask.sum()}',
    ),
    "fit_memory": (lambda value: value is None or isinstance(value, str), "text, or None"),
    "parameter_groups": (
        lambda value: value is None or (isinstance(value, Sequence) and _are(value, dict)),
        "a list of groups, each a dict with `params`, pairs of name and parameter; or None",
    ),
    "blocks": (_modules, _MODULES),
    "compile_units": (_modules, _MODULES),
    "shard_units": (_modules, _MODULES),
    "replays_at": (lambda value: isinstance(value, bool | int), "True, False or a whole number"),
    "custom_step": (
        lambda value: value is None or _step(value),
        "None, or (outputs, gradient norm, applied): the list that trainer.add_gradients returned "
        "and the two tensors of trainer.update",
    ),
    "evaluation_sets": (
        lambda value: _names(value) and all(map(callable, value.values())),
        "a dict of functions of (model, world) by name",
    ),
    "visualize": (
        lambda value: value is None or _names(value),
        "a dict of pictures, videos and texts by name",
    ),
    "finished": (
        lambda value: value is None or isinstance(value, str),
        "the reason as text, or None to continue",
    ),
    "state_dict": (_names, "a dict of tensors and plain values by name"),
}
