"""From two fake steps to a plan: memory of every strategy, largest batches, time to the end.

Memory goes linearly with the batch, so two sizes tell all others.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from overt.config import Config
from overt.config.batch import BatchPlan, learning_rates, plan_batches
from overt.config.schema import TrainingSection
from overt.engine.strategy.automatic import choice_on_cuda, records_on_cuda
from overt.errors import ConfigError, DataError
from overt.health.flops import PEAKS, peak_tflops
from overt.recipe import Recipe
from overt.tools.plan.communication import Network, ddp_traffic, fsdp_traffic
from overt.tools.plan.engine_step import EngineStep, Model, StepMemory, recipe_on_cuda

GIB = 2**30
# Work space of cuBLAS (32 MiB on Hopper) in the threads of the forward and of the backward pass,
# and of cuBLASLt: part of what the allocator counts.
LIBRARIES = 96 * 2**20
# Not counted by it: CUDA's own context and kernels; and gaps between blocks, a fraction of the
# total.
CONTEXT, GAPS = GIB // 2, 0.05
CARDS = {24: 23.5, 40: 39.4, 80: 79.1, 141: 139.8}  # GB in the name: GiB that CUDA reports


@dataclass(frozen=True)
class Request:
    """The request besides the configuration."""

    devices: tuple[int, ...]
    gpu: str
    efficiency: float  # fraction of the GPU's peak that the step reaches
    seconds_per_sample: float | None  # of one device, measured; None: from the efficiency
    samples: int | None  # in the data set, where it is not to be opened
    network: Network


class Fitted:
    """Two steps of different batch size, and by a straight line any other."""

    def __init__(self, first: StepMemory, second: StepMemory) -> None:
        assert first.batch_size != second.batch_size
        self.first, self.second = first, second

    def at(self, batch_size: int) -> StepMemory:
        """Return the step with this batch."""
        if batch_size in (self.first.batch_size, self.second.batch_size):
            return self.first if batch_size == self.first.batch_size else self.second
        fraction = (batch_size - self.first.batch_size) / (
            self.second.batch_size - self.first.batch_size
        )
        values = {
            name: round(value + fraction * (getattr(self.second, name) - value))
            for name, value in dataclasses.asdict(self.first).items()
        }
        return StepMemory(**values)


def device_memory(
    step: StepMemory, model: Model, strategy: str, devices: int, accumulates: bool = False
) -> int:
    """Return peak bytes on one device, as torch.cuda.max_memory_allocated counts them.

    `accumulates`: all gradients of an earlier micro-batch are there, and with FSDP unsharded.
    """
    static = step.parameters + step.frozen + step.optimizer
    match strategy:
        case "ddp" if devices > 1:
            # Gradients lie in buckets, which are there all the time; what accumulates under
            # `no_sync` lies beside them.
            copies = 2 if accumulates else 1
            return static + copies * step.gradients + step.transient + LIBRARIES
        case "fsdp" if devices > 1:
            shards = math.ceil((static + step.gradients) / devices)
            shards += step.gradients if accumulates else 0
            unit = 4 * max(model.unit_sizes, default=0)
            root_bytes = 4 * max(model.parameters + model.frozen - sum(model.unit_sizes), 0)
            # Whole at a time: what belongs to no unit, this unit, the one fetched ahead and what
            # it arrives in; this unit's gradient and what it leaves in.
            total_bytes = root_bytes + 3 * unit + 2 * unit
            return shards + total_bytes + step.transient + LIBRARIES
        case _ if accumulates:
            return static + step.gradients + step.transient + LIBRARIES
        case _:
            return step.peak + LIBRARIES


def sharded_memory(
    step: StepMemory, measured_on: int, devices: int, accumulates: bool = False
) -> int:
    """Return peak bytes on one of `devices` ranks, from an FSDP step on one of `measured_on` ranks.

    Only shards shrink with the world size; what is gathered, and activations, stay. So do
    gradients that wait unsharded for further micro-batches.
    """
    shards = step.parameters + step.frozen + step.optimizer + step.gradients
    waiting = step.gradients * measured_on if accumulates else 0
    return round(step.peak - shards * (1 - measured_on / devices)) + waiting + LIBRARIES


def largest_batch(memory: Callable[[int], int], card_gib: float) -> int:
    """The most samples per device with which memory, and what it does not count, fits; 0: none."""
    room = (card_gib * GIB - CONTEXT) / (1 + GAPS)
    if memory(1) > room:
        return 0
    most = 1
    while memory(2 * most) <= room and most < 2**20:
        most *= 2
    step = most // 2
    while step:  # between most and its double
        if memory(most + step) <= room:
            most += step
        step //= 2
    return most


def fit(
    config: Config,
    recipe: Recipe,
    sizes: tuple[int, int],
    checkpointing: bool,
    strategy: str = "single",
    devices: int = 1,
) -> tuple[Model, Fitted]:
    """Run two fake steps."""
    batches = [recipe.example_batch(size) for size in sizes]
    try:
        step = EngineStep(config, recipe, checkpointing, strategy, devices)
        first, second = (step.run(*pair) for pair in zip(batches, sizes, strict=True))
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ConfigError(_reads_values(config, recipe, error)) from error
    return step.numbers, Fitted(first, second)


def _reads_values(config: Config, recipe: Recipe, error: Exception) -> str:
    """Return which line of the recipe's step needs a value where a plan knows only sizes."""
    outside = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
    frames = traceback.extract_tb(error.__traceback__)
    reader = [frame for frame in frames if not frame.filename.startswith(outside)][-1]
    line = f"{reader.filename}, line {reader.lineno}"
    remedy = f": {recipe.replayable}" if isinstance(recipe.replayable, str) else ""
    return (
        f"recipe.name={config.recipe.name} cannot be planned, since a plan knows tensor sizes only "
        f"and its step reads a tensor's value on the host ({line}){remedy}"
    )


def make_plan(config: Config, recipe: Recipe, request: Request) -> dict[str, Any]:
    """Return everything that `overt plan` shows, in bytes, seconds and plain numbers.

    `recipe` is that of one device, from `recipe_on_cuda`.
    """
    training = config.training
    if request.seconds_per_sample is None:
        _peak_tflops(request, config)  # refused before the steps, which take long
    plans: dict[int, BatchPlan | str] = {}
    samples = request.samples or count_samples(config, recipe)
    for devices in request.devices:
        try:
            plan = plan_batches(training, devices)
            _total_steps(config, plan, samples)  # refused where no batch is full
            plans[devices] = plan
        except ConfigError as error:
            plans[devices] = str(error)
    possible = [plan for plan in plans.values() if isinstance(plan, BatchPlan)]
    if not possible:
        raise ConfigError(f"none of these numbers of devices works: {next(iter(plans.values()))}")
    first = max(plan.batch_size for plan in possible)
    sizes = (first, max(first // 2, 1) if first > 1 else 2)
    fitted = recipe.fit_memory(first, training.memory_gib) if training.memory_gib else None
    model, plain = fit(config, recipe, sizes, checkpointing=False)
    variants = {"plain": plain}
    if model.blocks:
        variants["checkpointing"] = fit(config, recipe, sizes, checkpointing=True)[1]
    sharded = _fit_sharded(config, recipe, sizes, model, possible)
    at_first = plain.at(first)
    is_spread = any(plan.world_size > 1 for plan in possible)
    on_ranks = recipe_on_cuda(config, 2) if is_spread else recipe
    is_recorded = records_on_cuda(training, on_ranks, 4 * model.parameters)
    weights = 1 if training.ema_momentum is None else 2  # with their average
    rows = [
        {"devices": devices, "problem": plan}
        if isinstance(plan, str)
        else _row(config, request, model, variants, sharded, plan, samples, is_recorded)
        for devices, plan in plans.items()
    ]
    return {
        "recipe": config.recipe.name,
        "precision": training.precision,
        "parameters": model.parameters,
        "frozen_parameters": model.frozen,
        "samples": samples,
        "checkpoint_bytes": weights * model.saved + at_first.optimizer,
        "parts": {name: dataclasses.asdict(line.at(first)) for name, line in variants.items()},
        "timing": _timing_words(request),
        "notes": [
            *_choices(training, recipe, on_ranks, model, rows),
            *_notes(config, model, sharded, fitted),
        ],
        "devices": rows,
    }


@dataclass(frozen=True)
class Sharded:
    """FSDP steps as one of `ranks` ranks, with and without recomputation."""

    ranks: int
    variants: dict[str, Fitted]


def _fit_sharded(
    config: Config, recipe: Recipe, sizes: tuple[int, int], model: Model, plans: list[BatchPlan]
) -> Sharded | None:
    """Run the engine's FSDP step where the run will; it takes longer than the formula."""
    ranks = min((plan.world_size for plan in plans if plan.world_size > 1), default=1)
    if config.training.strategy != "fsdp" or ranks == 1 or not model.unit_sizes:
        return None
    names = {"plain": False, "checkpointing": True}
    steps = {
        name: fit(config, recipe, sizes, checkpointing, "fsdp", ranks)[1]
        for name, checkpointing in names.items()
    }
    return Sharded(ranks, steps)


def _row(
    config: Config,
    request: Request,
    model: Model,
    variants: dict[str, Fitted],
    sharded: Sharded | None,
    plan: BatchPlan,
    samples: int | None,
    is_recorded: bool,
) -> dict[str, Any]:
    devices, total = plan.world_size, plan.global_batch_size
    strategies = ["single"] if devices == 1 else ["ddp", *(["fsdp"] if model.unit_sizes else [])]
    passes = plan.accumulation_steps
    reductions = passes if config.training.reduce_every_micro_batch else 1  # of FSDP
    memory: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    for strategy in strategies:
        for name, line in variants.items():

            def peak(
                size: int, line: Fitted = line, strategy: str = strategy, name: str = name
            ) -> int:
                accumulates = passes > (reductions if strategy == "fsdp" else 1)
                if strategy == "fsdp" and sharded is not None:
                    measured = sharded.variants[name].at(size)
                    return sharded_memory(measured, sharded.ranks, devices, accumulates)
                return device_memory(line.at(size), model, strategy, devices, accumulates)

            memory.setdefault(strategy, {})[name] = peak(plan.batch_size)
            fits = {str(card): largest_batch(peak, gib) for card, gib in CARDS.items()}
            largest.setdefault(strategy, {})[name] = fits
    is_recomputed = config.training.activation_checkpointing and "checkpointing" in variants
    step = variants["checkpointing" if is_recomputed else "plain"].at(plan.batch_size)
    flops = step.flops * passes
    alone = _seconds(request, config, plan, flops)
    traffic = {}
    if "ddp" in strategies:
        gradients = 4 * model.parameters
        traffic["ddp"] = ddp_traffic(
            gradients, alone, devices, request.network, is_recorded, passes
        )
    if "fsdp" in strategies:
        weights = 4 * (model.parameters + model.frozen)
        traffic["fsdp"] = fsdp_traffic(
            weights, 4 * model.parameters, len(model.unit_sizes), alone, devices, request.network,
            passes, reductions,
        )  # fmt: skip
    chosen = traffic.get(config.training.strategy, traffic.get("ddp"))
    seconds = alone + (chosen.exposed if chosen is not None else 0.0)
    steps = _total_steps(config, plan, samples)
    return {
        "devices": devices,
        "global_batch_size": total,
        "batch_size": plan.batch_size,
        "accumulation_steps": plan.accumulation_steps,
        "learning_rate": _learning_rates(config, plan),
        "memory_bytes": memory,
        "largest_batch": largest,
        "flops_per_device": flops,
        "seconds_per_step": seconds,
        "samples_per_second": total / seconds,
        "steps": steps,
        "hours": None if steps is None else steps * seconds / 3600,
        "traffic": {name: dataclasses.asdict(volume) for name, volume in traffic.items()},
    }


def _learning_rates(config: Config, plan: BatchPlan) -> dict[str, float]:
    """By each rule, from `lr_base_batch`, or else from the global batch on one device."""
    alone = config.training.global_batch_size or plan.batch_size * plan.accumulation_steps
    base = config.optimizer.lr_base_batch or alone
    optimizer = dataclasses.replace(config.optimizer, lr_base_batch=base)
    return learning_rates(optimizer, plan.global_batch_size)


def _seconds(request: Request, config: Config, plan: BatchPlan, flops: int) -> float:
    if request.seconds_per_sample is not None:
        return request.seconds_per_sample * plan.batch_size * plan.accumulation_steps
    return flops / (_peak_tflops(request, config) * 1e12 * request.efficiency)


def _peak_tflops(request: Request, config: Config) -> float:
    peak = peak_tflops(request.gpu, config.training.precision)
    if peak is None:
        raise ConfigError(
            f"--gpu {request.gpu}: its peak throughput is unknown; use one of {', '.join(PEAKS)}, "
            "or give the time of a step by --seconds"
        )
    return peak


def _total_steps(config: Config, plan: BatchPlan, samples: int | None) -> int | None:
    if config.training.num_steps is not None:
        return config.training.num_steps
    if samples is None or config.training.num_epochs is None:
        return None
    return config.training.num_epochs * plan.steps_per_epoch(samples, config.training.drop_last)


def count_samples(config: Config, recipe: Recipe) -> int | None:
    """Return the size of the data set if it exists; none is generated for this."""
    root = getattr(getattr(config.settings, "data", None), "root", None)
    if isinstance(root, str) and not Path(root).exists():
        return None
    try:
        return len(recipe.build_dataset())
    except (ConfigError, DataError, OSError):
        return None


def _timing_words(request: Request) -> str:
    if request.seconds_per_sample is not None:
        return f"measured, {request.seconds_per_sample:.4g} s per sample and device"
    return f"assumed, {request.efficiency:.0%} of the peak of {request.gpu}"


def _choices(
    training: TrainingSection,
    recipe: Recipe,
    on_ranks: Recipe,
    model: Model,
    rows: list[dict[str, Any]],
) -> list[str]:
    """Return what `auto` becomes on CUDA, once for all numbers of devices where it is the same."""
    choices: dict[str, list[str]] = {}
    for row in rows:
        if "problem" not in row:
            devices: int = row["devices"]
            built, reduced = (on_ranks, 4 * model.parameters) if devices > 1 else (recipe, 0)
            words = choice_on_cuda(training, built, model.compile_units, row["steps"], reduced)
            choices.setdefault(words, []).append(str(devices))
    choices.pop("", None)  # nothing is auto
    notes = []
    for words, numbers in choices.items():
        where = f" with {', '.join(numbers)} device(s)" if len(choices) > 1 else ""
        notes.append(f"auto on CUDA{where}: {words}; memory is predicted without either")
    return notes


def _notes(config: Config, model: Model, sharded: Sharded | None, fitted: str | None) -> list[str]:
    notes = []
    training = config.training
    if model.unit_sizes and sharded is None:
        notes.append(
            "memory with FSDP is a formula, within 10 % above the step; training.strategy=fsdp "
            "runs the FSDP step itself on fake tensors"
        )
    again = getattr(getattr(config.settings, "model", None), "recompute", None)
    if fitted is not None:
        notes.append(f"training.memory_gib={training.memory_gib:g}: predicted with {fitted}")
    elif again in ("auto", ["auto"]):
        notes.append(
            "model.recompute=auto: predicted for the value of a CPU; on CUDA a run takes the "
            "fastest one that fits: training.memory_gib=N predicts that of N GiB"
        )
    if training.compile in ("blocks", "model"):
        notes.append(
            f"training.compile={training.compile}: predicted as if not compiled; compiled code "
            "keeps less, by how much only a run can tell"
        )
    if training.cuda_graph is True:
        notes.append("training.cuda_graph=true: a recording keeps its memory between steps")
    if not model.blocks:
        notes.append("this recipe names no blocks: no activation checkpointing, no FSDP")
    return notes
