"""Whether `Recipe.loss` is pure: changes of recipe, model or batch are named.

The engine calls `loss` again to rebuild DDP's buckets, to count FLOPs and to find NaN. A `loss`
that changes anything then trains another run than the one without these calls.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm

from overt.checkpoint import random_state
from overt.config import Config, build_recipe
from overt.distributed import World
from overt.engine.build import build
from overt.engine.loader import global_counts
from overt.engine.precision import AUTOCAST
from overt.nested import map_tensors, tensors_in
from overt.recipe import Recipe, StepOutput

# Statistics that a forward pass moves by design; the engine puts them back after its own call.
STATISTICS = (_NormBase, _SpectralNorm)
STEPS = (0, 1)
PLAIN = (str, bytes, int, float, complex, bool, type(None))
AGAIN = (
    "called again with the same batch, weights and random numbers, loss returned something else: "
    "it depends on what it changes"
)
FIXED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


@dataclass(frozen=True)
class Purity:
    """What calling `loss` several times on one batch has shown."""

    difference: str | None  # None: it is pure
    is_random: bool  # other random numbers, another loss: dropout, for example
    keeps_statistics: bool  # of batches, as batch norm does
    compared: str  # what was looked at

    @property
    def is_function_of_samples(self) -> bool:
        """Whether a batch in parts gives the loss of the whole, in training mode too."""
        return not self.is_random and not self.keeps_statistics


def check_purity(config: Config, world: World) -> Purity:
    """Build what a step needs, call `loss` on the first micro-batch, and compare."""
    dtype = AUTOCAST.get(config.training.precision)
    with (
        random_state.undisturbed(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        calls = Calls.of(config, world)
        before = calls.snapshot()
        calls.loss()
        changes = before.changes(calls.snapshot(), ("recipe",))
        if changes:
            # A cache stays as the first call has filled it, and is the same whatever the batch.
            calls.loss()
            other = Calls.of(replace(config, seed=config.seed + 1), world)
            other.loss()
            first, second = calls.snapshot().recipe, other.snapshot().recipe
            for change in changes:
                if {first.get(change.name), second.get(change.name)} != {change.after}:
                    return Purity(f"loss changed {change}", False, False, before.describe())
            before = replace(before, recipe=first)
        return calls.compare(before)


@dataclass(frozen=True)
class Difference:
    """A value that is not what it was."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before} before, {self.after} after"


@dataclass(frozen=True)
class Calls:
    """One batch, and the loss on it again and again."""

    recipe: Recipe
    model: nn.Module
    batch: Any
    counts: dict[str, Tensor]
    buffers: dict[str, Tensor]  # before any call

    @classmethod
    def of(cls, config: Config, world: World) -> Calls:
        """Build a separate recipe, and what a step needs."""
        recipe = build_recipe(config)
        parts = build(config, recipe, world)
        first = parts.loader.first_step()
        batch = map_tensors(first.micro_batches[0].batch, lambda tensor: tensor.to(world.device))
        counts = global_counts(recipe, first, world.device)
        model = parts.wrapping.module
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        return cls(recipe, model, recipe.on_device(batch), counts, buffers)

    def snapshot(self) -> Snapshot:
        return Snapshot.of(self)

    def compare(self, before: Snapshot) -> Purity:
        """Call `loss` twice with the same random numbers, and once with others, at each step."""
        is_random = keeps_statistics = False
        for step in STEPS:
            outputs = []
            for seed in (0, 0, 1):
                self.restore_buffers()
                outputs.append(terms(self.loss(step, seed)))
                after = self.snapshot()
                changes = before.changes(after)
                if changes:
                    return Purity(f"loss changed {changes[0]}", False, False, before.describe())
                keeps_statistics |= after.statistics != before.statistics
            first, again, other = outputs
            changed = first_difference(first, again)
            if changed is not None:
                return Purity(f"{AGAIN} ({changed})", False, False, before.describe())
            is_random |= first_difference(first, other) is not None
        return Purity(None, is_random, keeps_statistics, before.describe())

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Undo what norms have seen, as the engine does after its own call."""
        for name, value in self.model.named_buffers():
            value.copy_(self.buffers[name])

    def loss(self, step: int = 0, seed: int = 0) -> StepOutput:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return self.recipe.loss(self.model, self.batch, self.counts, step)


def terms(output: StepOutput) -> dict[str, Tensor]:
    """Return everything that a loss returns, by name."""
    parts = {"losses": output.losses, "metrics": output.metrics, "carry": output.carry}
    return {
        f"{part}[{name!r}]": value.detach().clone()
        for part, values in parts.items()
        for name, value in values.items()
    }


def first_difference(before: dict[str, Tensor], after: dict[str, Tensor]) -> str | None:
    """Return which term differs between two outputs, and its values."""
    for name in {**before, **after}:
        value, again = before.get(name), after.get(name)
        if value is None or again is None:
            return f"{name} is there only once"
        if not _close(value, again):
            scalar = value.numel() == again.numel() == 1
            values = f" is {value.item():.7g}, then {again.item():.7g}" if scalar else " differs"
            return f"{name}{values}"
    return None


def _close(value: Tensor, other: Tensor) -> bool:
    if value.shape != other.shape or not value.is_floating_point():
        return torch.equal(value, other)
    return torch.allclose(value, other, rtol=1e-6, atol=0.0, equal_nan=True)


@dataclass(frozen=True)
class Snapshot:
    """Fingerprints of all that `loss` must leave as it is, by name."""

    recipe: dict[str, str]
    parameters: dict[str, str]
    buffers: dict[str, str]
    batch: dict[str, str]
    statistics: dict[str, str]  # of batches, in norms: these may move

    @classmethod
    def of(cls, calls: Calls) -> Snapshot:
        kind = type(calls.recipe)
        recipe = dict(fingerprints(calls.recipe, "the recipe"))
        for owner in kind.__mro__:
            if issubclass(owner, Recipe) and owner is not Recipe:
                attributes = {
                    name: item for name, item in vars(owner).items() if _is_value(name, item)
                }
                recipe |= dict(fingerprints(attributes, f"vars({owner.__name__})"))
        buffers: dict[str, str] = {}
        statistics: dict[str, str] = {}
        for prefix, module in calls.model.named_modules():
            for name, buffer in module.named_buffers(prefix, recurse=False):
                chosen = statistics if isinstance(module, STATISTICS) else buffers
                chosen[f"the buffer {name} of the model"] = fingerprint(buffer)
        parameters = {
            f"the parameter {name} of the model": fingerprint(parameter)
            for name, parameter in calls.model.named_parameters()
        }
        batch = {
            f"tensor {index} of the batch": fingerprint(tensor)
            for index, tensor in enumerate(tensors_in(calls.batch))
        }
        return cls(recipe, parameters, buffers, batch, statistics)

    def changes(
        self,
        other: Snapshot,
        parts: Sequence[str] = ("recipe", "parameters", "buffers", "batch"),
    ) -> list[Difference]:
        """Return every value that differs."""
        changes = []
        for part in parts:
            old_values, new_values = getattr(self, part), getattr(other, part)
            for name in {**old_values, **new_values}:
                before, after = old_values.get(name, "absent"), new_values.get(name, "absent")
                if before != after:
                    changes.append(Difference(name, before, after))
        return changes

    def describe(self) -> str:
        return (
            f"{len(self.recipe)} values of the recipe, {len(self.parameters)} parameters, "
            f"{len(self.buffers)} buffers, {len(self.batch)} tensors of a batch"
        )


def _is_value(name: str, item: object) -> bool:
    described = hasattr(type(item), "__get__")  # methods, properties
    return not name.startswith("__") and name != "_abc_impl" and not described


def fingerprints(
    value: Any, name: str, visited: set[int] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield a name and a fingerprint for every value that can be reached from this one."""
    visited = set() if visited is None else visited
    if isinstance(value, (*PLAIN, *FIXED)):
        yield name, fingerprint(value)
        return
    if id(value) in visited:
        return
    visited.add(id(value))
    if isinstance(value, Mapping):
        yield f"the keys of {name}", _short(", ".join(map(repr, value)))
        for key, item in value.items():
            yield from fingerprints(item, f"{name}[{key!r}]", visited)
    elif isinstance(value, list | tuple | deque):
        yield f"the length of {name}", str(len(value))
        for index, item in enumerate(value):
            yield from fingerprints(item, f"{name}[{index}]", visited)
    elif isinstance(value, Tensor | np.ndarray | Set | np.generic) or _state(value) is not None:
        yield name, fingerprint(value)
    else:
        for key, item in _attributes(value).items():
            yield from fingerprints(item, f"{name}.{key}", visited)


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an object; what a cached property keeps is not state."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots: str | Sequence[str] = getattr(kind, "__slots__", ())
        for slot in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, slot) and slot not in ("__dict__", "__weakref__"):
                attributes[slot] = getattr(value, slot)
    kind = type(value)
    return {
        key: item
        for key, item in attributes.items()
        if not isinstance(getattr(kind, key, None), cached_property)
    }


def _state(value: object) -> str | None:
    """Return the state of a random generator."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    if isinstance(value, random.Random):
        return repr(value.getstate())
    return None


def fingerprint(value: Any) -> str:
    """Return a short text that is another one when the value has changed."""
    if isinstance(value, Tensor):
        local = value.detach().cpu().contiguous()
        dtype = str(local.dtype).removeprefix("torch.")
        digest = _digest(local.reshape(-1).view(torch.uint8).numpy().tobytes())
        return f"{dtype} {tuple(local.shape)} {digest}"
    if isinstance(value, np.memmap):  # of a data set: too large to read
        return f"{value.dtype} {value.shape} of {value.filename}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {_digest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, FIXED):
        return f"{getattr(value, '__qualname__', value)}"
    if isinstance(value, Set):
        return _short(", ".join(sorted(map(repr, value))))
    return _short(_state(value) or repr(value))


def _short(text: str) -> str:
    return text if len(text) < 60 else f"{text[:40]}... {_digest(text.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()
