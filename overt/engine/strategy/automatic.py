"""`training.compile=auto` and `training.cuda_graph=auto`: used where they pay, refused nowhere.

The choice follows from configuration, recipe and kind of device alone, never from a clock, so that
a resumed run makes it again. What was chosen only by `auto` is given up, with words, where the
first pass shows that it does not work here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch._dynamo.config
from torch import Tensor, nn

from overt.checkpoint import random_state
from overt.config.schema import TrainingSection
from overt.distributed import World, gather_objects
from overt.engine.returned import returned
from overt.engine.strategy.blocks import compile_model
from overt.engine.strategy.graph import GraphedPass, Pass, in_one_line
from overt.health.flops import buffers_kept
from overt.health.memory import is_out_of_memory
from overt.health.preemption import stop_within
from overt.ops import dispatch
from overt.recipe import Recipe
from overt.run.events import Event, SpeedChosen, SpeedGivenUp

FEWEST_STEPS = 500  # compilation takes up to a minute, and saves some 0.1 s of a step
OLDEST = (7, 0)  # compute capability that Triton's kernels need
# Recorded passes leave gradients to one reduction after them, which nothing hides; DDP hides its
# own behind the backward pass. Below this size, of 100 M parameters, a recording gains more.
LARGEST_REDUCED = 400 * 10**6  # bytes


@dataclass
class Speed:
    """What `auto` resolves to in this run."""

    training: TrainingSection  # with `compile` and `cuda_graph` settled
    reason: str = ""  # of the line in the log; empty where there was nothing to choose
    tries_blocks: bool = False  # to be compiled with the first step, if that works
    tries_graph: bool = False  # likewise to be recorded

    def at_start(self) -> TrainingSection:
        """Return what is done before the first step: what may fail waits for that."""
        return replace(self.training, compile="none") if self.tries_blocks else self.training


def fit_memory(
    training: TrainingSection, recipe: Recipe, samples: int, device: torch.device
) -> str | None:
    """Let the recipe choose what it computes again; return its choice as text."""
    if device.type != "cuda":
        return None
    gib = training.memory_gib or torch.cuda.mem_get_info(device)[0] / 2**30
    return returned(recipe, "fit_memory", recipe.fit_memory(samples, gib))


def choose(
    training: TrainingSection,
    recipe: Recipe,
    model: nn.Module,
    world: World,
    total_steps: int,
    fitted: str | None = None,
) -> Speed:
    """Settle what is `auto`; what has a value keeps it."""
    compiles, graphs = training.compile == "auto", training.cuda_graph == "auto"
    reasons = []
    if compiles:
        against = _against_compiling(training, recipe, model, world, total_steps)
        training = replace(training, compile="none" if against else "blocks")
        reasons.append(_compiles(against))
    if graphs:
        against = _against_recording(training, recipe, model, world)
        training = replace(training, cuda_graph=not against)
        reasons.append(_records(against))
    if fitted is not None:
        reasons.append(fitted)
    if world.device.type != "cuda":  # nothing to choose
        return Speed(training)
    return Speed(
        training,
        ", ".join(reasons),
        tries_blocks=compiles and training.compile == "blocks",
        tries_graph=graphs and bool(training.cuda_graph),
    )


def choice_on_cuda(
    training: TrainingSection, recipe: Recipe, units: int, total_steps: int | None, reduced: int
) -> str:
    """Return what `auto` resolves to on CUDA with Triton, as text; empty where nothing is `auto`.

    `units` are those that would be compiled, `reduced` the bytes of gradients that are reduced.
    Training of unknown length is taken to be long.
    """
    reasons = []
    if training.compile == "auto":
        steps = FEWEST_STEPS if total_steps is None else total_steps
        reasons.append(_compiles(_against_blocks(training, recipe, units, steps)))
    if training.cuda_graph == "auto":
        reasons.append(_records(_against_replaying(training, recipe, reduced)))
    return ", ".join(reasons)


def _compiles(against: str | None) -> str:
    return (
        f"compile=none ({against})" if against else "compile=blocks (repeated blocks, a long run)"
    )


def _records(against: str | None) -> str:
    if against:
        return f"cuda_graph=false ({against})"
    return "cuda_graph=true (the same work in every step)"


def _against_compiling(
    training: TrainingSection, recipe: Recipe, model: nn.Module, world: World, total_steps: int
) -> str | None:
    """Return why blocks are not compiled, the first reason that holds."""
    if world.device.type != "cuda":
        return "on a CPU it does not pay"
    units = len(returned(recipe, "compile_units", recipe.compile_units(model)))
    if against := _against_blocks(training, recipe, units, total_steps):
        return against
    if not dispatch.HAS_TRITON:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(world.device) < OLDEST:
        return "the device is older than Triton supports"
    return None


def _against_blocks(
    training: TrainingSection, recipe: Recipe, units: int, total_steps: int
) -> str | None:
    if training.deterministic:
        return "training.deterministic=true keeps to kernels that do not depend on a compiler"
    if training.strategy == "fsdp":
        return "blocks are sharded; training.compile=blocks compiles them nevertheless"
    if isinstance(recipe.compile_pays, str) or not recipe.compile_pays:
        return str(recipe.compile_pays or "the recipe says that it does not pay")
    if not units:
        return "the recipe names no blocks"
    if total_steps < FEWEST_STEPS:
        return f"{total_steps} steps are over before compilation pays, from {FEWEST_STEPS} it does"
    return None


def _against_recording(
    training: TrainingSection, recipe: Recipe, model: nn.Module, world: World
) -> str | None:
    """Return why passes are not recorded, the first reason that holds."""
    if world.device.type != "cuda":
        return "a CPU has none"
    trained = [value for value in model.parameters() if value.requires_grad]
    size = sum(value.numel() * value.element_size() for value in trained)
    return _against_replaying(training, recipe, size if world.world_size > 1 else 0)


def records_on_cuda(training: TrainingSection, recipe: Recipe, reduced: int) -> bool:
    """Return whether passes are recorded on CUDA, with this many bytes of gradients to reduce."""
    if training.cuda_graph == "auto":
        return _against_replaying(training, recipe, reduced) is None
    return bool(training.cuda_graph)


def _against_replaying(training: TrainingSection, recipe: Recipe, reduced: int) -> str | None:
    if training.deterministic:
        return "training.deterministic=true runs every pass alike, and a recording starts later"
    if training.strategy == "fsdp":
        return "gathering shards cannot be replayed"
    if isinstance(recipe.replayable, str):
        return recipe.replayable
    if not recipe.replayable:
        return "the recipe does not say that its loss can be replayed"
    if isinstance(recipe.stackable, str):
        return f"batches have different shapes: {recipe.stackable}"
    if reduced > LARGEST_REDUCED:
        return "gradients this large are better reduced during the backward pass"
    return None


class HasStep(Protocol):
    """The state of a run."""

    step: int


class Attempt:
    """What was chosen at its first use: it works here, or the run continues without it."""

    def __init__(
        self,
        speed: Speed,
        recipe: Recipe,
        model: nn.Module,
        record: Callable[[Event], None],
        clock: HasStep,
    ) -> None:
        self.speed, self.recipe, self.model = speed, recipe, model
        self.record, self.clock = record, clock
        self.has_begun = False

    def recorded(self, run: Pass, parameters: list[nn.Parameter]) -> GraphedPass | None:
        """Return the pass that is replayed, if it is to be."""
        if not self.speed.training.cuda_graph:
            return None
        return GraphedPass(run, parameters, self._give_up_graph if self.speed.tries_graph else None)

    def variant(self, step: int) -> int:
        """Return which recording a step replays; 0: none, it looks at values on the host."""
        return int(returned(self.recipe, "replays_at", self.recipe.replays_at(step)))

    def begin(self, loss: Callable[[nn.Module], Tensor]) -> None:
        """Say what was chosen before the first step, and compile what is to be compiled.

        A pass that counts nowhere shows whether that works. All ranks agree: where it fails on one,
        none compiles. The loss is pure, and generators and buffers stay as they are: no step is
        lost.
        """
        if self.has_begun:
            return
        speed, self.has_begun = self.speed, True
        if speed.reason:
            training = speed.training
            graph = bool(training.cuda_graph)
            self.record(SpeedChosen(self.clock.step, training.compile, graph, speed.reason))
        if speed.tries_blocks:
            self._try_blocks(loss)

    def _try_blocks(self, loss: Callable[[nn.Module], Tensor]) -> None:
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        problem: str | None = None
        try:
            compile_model(self.recipe, self.model, self.speed.training)
            with random_state.undisturbed(), buffers_kept(self.model), torch.enable_grad():
                torch.autograd.grad(loss(self.model), parameters, allow_unused=True)
        except Exception as error:
            if is_out_of_memory(error) or stop_within(error):
                raise
            problem = in_one_line(error)
        problem = next(filter(None, gather_objects(problem)), None)
        if problem is None:
            # Other shapes may come later: what does not compile then runs as it is.
            torch._dynamo.config.suppress_errors = True
            return
        for unit in self.recipe.compile_units(self.model):
            unit._compiled_call_impl = None
        self.speed.training = replace(self.speed.training, compile="none")
        self.record(SpeedGivenUp(self.clock.step, "training.compile", "none", problem))

    def _give_up_graph(self, problem: str) -> None:
        self.speed.training = replace(self.speed.training, cuda_graph=False)
        self.record(SpeedGivenUp(self.clock.step, "training.cuda_graph", "false", problem))
