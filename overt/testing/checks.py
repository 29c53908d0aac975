"""The checks, one function each: a failing one raises AssertionError and says what differs."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors.torch import save_file
from torch import nn

from overt.api import refuse_import_by_child
from overt.checkpoint import random_state
from overt.checkpoint.reading import read_tensors
from overt.checkpoint.trained import load_model
from overt.config import Config, build_recipe
from overt.config.python import Options, configure
from overt.engine.loader import global_counts
from overt.errors import ConfigError, nearest
from overt.recipe import Recipe
from overt.testing.subject import (
    COMPARED_STEPS,
    RANKS,
    RESUMED_AT,
    STEPS,
    Curve,
    Skipped,
    Subject,
)
from overt.tools.plan.communication import Network
from overt.tools.plan.predict import Request, make_plan
from overt.tools.proof.compare import compare_checkpoints
from overt.tools.proof.purity import terms


def check_step(subject: Subject) -> None:
    """Check that the first steps have a finite loss and a finite gradient."""
    for step, row in subject.whole.curve.items():
        for name, value in row._asdict().items():
            assert math.isfinite(value), f"the {name} of step {step} is {value}"
    norms = [row.gradient_norm for row in subject.whole.curve.values()]
    assert max(norms) > 0, f"the gradient is 0 in each of the first {len(norms)} steps"


def check_pure(subject: Subject) -> None:
    """Check that `loss` changes nothing, and returns the same when it is called again."""
    difference = subject.purity.difference
    assert difference is None, (
        f"{difference}. The engine calls loss more than once; what later code needs goes into "
        "StepOutput.carry, for after_step"
    )


def check_loaders(subject: Subject) -> None:
    """Check that loader processes can be sent what they need, and no module along with it."""
    subject.need_importable()
    recipe = subject.whole.recipe
    for name, sent in (("data set", recipe.build_dataset()), ("recipe's collate", recipe.collate)):
        modules: list[str] = []
        try:
            _ModuleFinder(modules).dump(sent)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise AssertionError(
                f"the {name} cannot be pickled for loader processes: {error}. Leave what they do "
                "not need out of __getstate__"
            ) from error
        assert not modules, (
            f"the {name} carries a {modules[0]} to every loader process, which on a GPU starts "
            "CUDA for it. Keep it as an attribute of the recipe, or leave it out of __getstate__"
        )


class _ModuleFinder(pickle.Pickler):
    """Pickles a value and notes the classes of the modules in it."""

    def __init__(self, modules: list[str]) -> None:
        super().__init__(BytesIO())
        self.modules = modules

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            self.modules.append(type(value).__qualname__)
        return NotImplemented


def check_falls(subject: Subject) -> None:
    """Check that the loss falls on a repeated batch, through the optimizer of the run."""
    losses = [row.loss for row in subject.repeated.values()]
    last = sum(losses[-3:]) / len(losses[-3:])
    limit = losses[0] - (1 - subject.falls_to) * abs(losses[0])
    assert last <= limit, (
        f"the loss of one repeated batch went from {losses[0]:.6g} to {last:.6g} in {len(losses)} "
        f"steps with optimizer.lr={subject.small.optimizer.lr:g}; expected at most {limit:.6g}. "
        "Check the sign of the loss, the gradient and the learning rate; `steps` and `falls_to` "
        "set how far it has to fall"
    )


def check_resume(subject: Subject) -> None:
    """Check that a run continued from a checkpoint ends with the bits of the uninterrupted one."""
    ends = (subject.whole.checkpoint(STEPS), subject.resumed.checkpoint(STEPS))
    difference = compare_checkpoints(*ends).difference
    assert difference is None, (
        f"resumed at step {RESUMED_AT}, step {STEPS} differs: {difference}. Something that the "
        "computation depends on is not saved: make it a buffer of the model, or return it from "
        "Recipe.state_dict"
    )


def check_accumulation(subject: Subject) -> None:
    """Check that accumulated micro-batches give the numbers of one large batch."""
    if subject.largest == 1:
        raise Skipped(f"micro-batches hold one sample: {subject.recipe.stackable}")
    _require_same(subject, subject.reference, subject.accumulated, "one batch", "two micro-batches")


def check_processes(subject: Subject) -> None:
    """Check that two processes give the numbers of one."""
    _require_same(
        subject, subject.reference, subject.spread("ddp"), "one process", f"{RANKS} processes"
    )


def check_fsdp(subject: Subject) -> None:
    """Check that sharded training gives the numbers of DDP."""
    if not has_blocks(subject):
        raise Skipped("the recipe has no blocks")
    _require_same(subject, subject.spread("ddp"), subject.spread("fsdp"), "DDP", "FSDP")


def check_plan(subject: Subject) -> None:
    """Check that `overt plan` runs: one step on fake tensors."""
    if type(subject.recipe).example_batch is Recipe.example_batch:
        raise Skipped("the recipe has no example_batch")
    request = Request((1,), "H200", 0.3, None, subject.samples, Network())
    try:
        with random_state.undisturbed():
            plan = make_plan(
                subject.named("plan", batch_size=subject.largest),
                build_recipe(subject.small),
                request,
            )
    except Exception as error:
        raise AssertionError(f"overt plan fails with {type(error).__name__}: {error}") from error
    assert plan["parameters"] > 0, "overt plan finds no parameter to train"


def check_export(subject: Subject) -> None:
    """Check that a checkpoint, exported to safetensors, gives a new model the same loss."""
    whole = subject.whole
    tensors, _ = read_tensors(whole.checkpoint(STEPS), "model")
    file = subject.folder / "exported.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    with random_state.undisturbed():
        torch.manual_seed(1)  # other weights than the trained ones
        recipe = build_recipe(whole.config)
        recipe.begin(subject.small.training.num_steps or 1, 1)
        model, _ = load_model(recipe, file)
        recipe.load_state_dict(whole.recipe.state_dict())  # of training, in no exported file
        micro = whole.first.micro_batches[0]
        counts = global_counts(recipe, whole.first, subject.world.device)
        outputs = []
        for owner, weights in ((whole.recipe, whole.model.eval()), (recipe, model)):
            torch.manual_seed(0)
            # With gradients, as in training: a loss may compute gradients.
            outputs.append(terms(owner.loss(weights, owner.on_device(micro.batch), counts, STEPS)))
    trained, loaded = outputs
    for name, value in trained.items():
        if name.startswith("losses") and not torch.allclose(
            value, loaded[name], rtol=subject.tolerance, equal_nan=True
        ):
            raise AssertionError(
                f"a model with the exported weights has another {name}: {float(loaded[name]):.7g}, "
                f"not {float(value):.7g}. A tensor that the loss depends on is in no checkpoint: "
                "make it a parameter or a persistent buffer"
            )


def has_blocks(subject: Subject) -> bool:
    """Return whether the recipe says what can be sharded."""
    return bool(subject.recipe.shard_units(subject.whole.model))


def _require_same(
    subject: Subject, curve: Curve, other_curve: Curve, first: str, second: str
) -> None:
    """Compare the first steps of two runs."""
    for step in range(1, COMPARED_STEPS + 1):
        for name, value in curve[step]._asdict().items():
            other_value = getattr(other_curve[step], name)
            difference = abs(value - other_value) / max(abs(value), 1e-8)
            mode = " in evaluation mode" if subject.evaluating else ""
            assert difference <= subject.tolerance, (
                f"{first} and {second} differ{mode}: the {name} of step {step} is {value:.7g} and "
                f"{other_value:.7g}, {difference:.1e} apart (tolerance {subject.tolerance:g}). "
                "Each term of the loss is a sum over the micro-batch divided by a count of the "
                "global batch, `counts`; no sample may affect another"
            )


CHECKS: Mapping[str, Callable[[Subject], None]] = {
    "step": check_step,
    "pure": check_pure,
    "loaders": check_loaders,
    "falls": check_falls,
    "resume": check_resume,
    "accumulation": check_accumulation,
    "processes": check_processes,
    "fsdp": check_fsdp,
    "plan": check_plan,
    "export": check_export,
}


def check_recipe(
    recipe: type[Recipe] | str | Config,
    *,
    only: Collection[str] | None = None,
    skip: Mapping[str, str] | None = None,
    samples: int = 4,
    steps: int = 20,
    falls_to: float = 0.9,
    tolerance: float = 1e-4,
    **options: Unpack[Options],
) -> dict[str, str]:
    """Try everything that the engine relies on; return what passed, and what was skipped and why.

    Takes a configuration, or what `overt.configure` takes; give the smallest settings you have.
    `only` names checks to make, `skip` those to leave, each with a reason. `samples` make a global
    batch. In `steps` steps on one batch the loss falls to `falls_to` of the first. `tolerance` is
    relative, for runs that must agree. On the CPU and in fp32; runs are made in a temporary folder.
    """
    refuse_import_by_child("overt.testing.check_recipe")
    skip = skip or {}
    for name in (*(only or ()), *skip):
        if name not in CHECKS:
            raise ConfigError(
                f"unknown check {name}{nearest(name, list(CHECKS))}; there are {', '.join(CHECKS)}"
            )
    chosen = [name for name in CHECKS if only is None or name in only]
    config = recipe if isinstance(recipe, Config) and not options else configure(recipe, **options)
    report: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="overt-check-") as folder, random_state.undisturbed():
        subject = Subject(config, Path(folder), samples, steps, falls_to, tolerance)
        if "fsdp" in chosen and "fsdp" not in skip:
            subject.strategies = ("ddp", "fsdp")
        for name in chosen:
            report[name] = _outcome(name, subject, skip.get(name))
    return report


def _outcome(name: str, subject: Subject, reason: str | None) -> str:
    if reason is not None:
        return f"skipped: {reason}"
    try:
        CHECKS[name](subject)
    except Skipped as skipped:
        return f"skipped: {skipped}"
    except AssertionError as error:
        raise AssertionError(f"{subject.config.recipe.name}, check {name}: {error}") from error
    return "passed"
