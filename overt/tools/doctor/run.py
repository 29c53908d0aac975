"""One configured run, before it is started: batch, checkpoint size against disk, data, loaders."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from overt.config import Config
from overt.config.batch import plan_batches
from overt.config.schema import OptimizerSection
from overt.data.rng import sample_rng
from overt.engine.build import initial_weights as find_initial_weights
from overt.engine.optimizer import build_optimizer
from overt.engine.optimizer_rules import Assignment, assign
from overt.errors import OvertError
from overt.recipe import Recipe, SampleSource
from overt.run.reader import number_of, read_rows
from overt.run.resume import has_to_resume
from overt.tools.doctor.cluster import nearest_existing
from overt.tools.doctor.report import Check, fail, ok, warn

MEGABYTE = 1e6
MARGIN = 1.2  # loaders should be this much faster than training: their speed varies


def batches(config: Config, world_size: int) -> Check:
    """Check how the global batch is split; one that does not divide is refused."""
    plan = plan_batches(config.training, world_size)
    return ok(
        "batch",
        f"{plan.batch_size} per process x {world_size} process(es) x {plan.accumulation_steps} "
        f"accumulated = {plan.global_batch_size}",
    )


def initial_weights(config: Config) -> Check:
    """Check that the weights that a new run starts from exist."""
    if has_to_resume(config):
        return ok("initial weights", "not needed: the run resumes from its checkpoint")
    return ok("initial weights", f"{find_initial_weights(config)} exists")


def evaluation_data(recipe: Recipe) -> Check:
    """Check that the evaluation data exists, as a run does before its first step."""
    recipe.check_evaluation_data()
    return ok("evaluation data", "the evaluation data exists and can be opened")


def disk_space(config: Config, size: int) -> Check:
    """Room for the checkpoints of that size to be kept, and for one being written beside them."""
    checkpoints_kept = config.checkpoint.keep_last_n
    if config.checkpoint.metric_name is not None:
        checkpoints_kept += config.checkpoint.keep_best_n
    folder = nearest_existing(config.run_dir)
    free = shutil.disk_usage(folder).free
    text = (
        f"a checkpoint takes {size / MEGABYTE:,.1f} MB, {checkpoints_kept} kept and one being "
        f"written {(checkpoints_kept + 1) * size / MEGABYTE:,.1f} MB; "
        f"{free / MEGABYTE:,.0f} MB free in {folder}"
    )
    remedy = "free space, choose another output_dir, or lower checkpoint.keep_last_n, keep_best_n"
    if free < 2 * size:
        return fail("disk space", text, remedy)
    if free < (checkpoints_kept + 1) * size:
        return warn("disk space", text, remedy)
    return ok("disk space", text)


def checkpoint_bytes(config: Config, recipe: Recipe) -> int:
    """Size of one checkpoint: weights, their average, and what the optimizer keeps of each."""
    model = _build(recipe)
    weights = _bytes(model.state_dict().values())
    average = 0 if config.training.ema_momentum is None else weights
    trained = [pair for pair in model.named_parameters() if pair[1].requires_grad]
    moments = 0.0
    for part in assign(config.optimizer, model, [{"params": trained, "lr_scale": 1.0}]):
        size = _bytes(value for group in part.groups for _, value in group["params"])
        moments += size * state_ratio(part, config.optimizer)
    return weights + average + math.ceil(moments)


def _build(recipe: Recipe) -> nn.Module:
    """Return the model without its memory, where its code allows that."""
    try:
        with torch.device("meta"):
            return recipe.build_model()
    except OvertError:
        raise
    except Exception:  # a model may compute with its weights while it is built
        return recipe.build_model()


def state_ratio(part: Assignment, section: OptimizerSection) -> float:
    """Bytes that an optimizer keeps for each byte of a trained weight, seen on a small matrix."""
    alone = replace(
        section,
        _target_=part.target,
        weight_decay=part.weight_decay,
        weight_decay_schedule=None,
        arguments=part.arguments,
        rules=[],
    )
    model = nn.Linear(32, 32, bias=False)
    optimizer = build_optimizer(alone, model)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    state_tensors = [
        value for value in optimizer.state[model.weight].values() if torch.is_tensor(value)
    ]
    return _bytes(value for value in state_tensors if value.ndim > 0) / _bytes([model.weight])


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def read_samples(
    source: SampleSource, config: Config, count: int, rank: int = 0
) -> tuple[Check, float | None]:
    """Draw a few samples from all over the data; the seconds that one takes."""
    length = len(source)
    if length == 0:
        remedy = "check data.root and the settings of the section data"
        return fail("data", "the training data set is empty", remedy), None
    chosen = np.random.default_rng([config.seed, rank]).choice(
        length, size=min(count, length), replace=False
    )
    seconds = []
    for index in map(int, chosen):
        began = time.perf_counter()
        try:
            source.sample(index, sample_rng(config.seed, 0, index))
        except OvertError as error:
            remedy = "repair or remove that file"
            return fail("data", f"sample {index} cannot be read: {error}", remedy), None
        except Exception as error:  # a bug of the data set is a finding too
            problem = f"sample {index} raises {type(error).__name__}: {error}"
            return fail(
                "data", problem, "fix the data set's code, which fails on this sample"
            ), None
        seconds.append(time.perf_counter() - began)
    typical = statistics.median(seconds)
    text = f"{length:,} samples; {len(seconds)} of them read, {1e3 * typical:.1f} ms each"
    return ok("data", text), typical


def loader_speed(
    config: Config, sample_seconds: float, world_size: int, step_seconds: float | None
) -> Check:
    """Compare the samples per second of a rank's loaders with those that its steps consume."""
    plan = plan_batches(config.training, world_size)
    workers = config.training.num_workers
    cores = len(os.sched_getaffinity(0))
    busy = max(min(workers, cores), 1)
    rate = busy / max(sample_seconds, 1e-9)
    text = f"about {rate:,.0f} samples/s by {workers} loader(s) of one process"
    if step_seconds is None:
        more = "; give --step-seconds, or run some steps, to compare that with training"
        return ok("loader speed", text + more)
    need = plan.batch_size * plan.accumulation_steps / step_seconds
    text += f"; training takes {need:,.0f} samples/s at {step_seconds:.3g} s a step"
    if workers == 0 and rate < 10 * need:
        return warn(
            "loader speed",
            text,
            "set training.num_workers=4: without loader processes training waits for every sample",
        )
    if rate >= MARGIN * need:
        return ok("loader speed", text)
    needed_workers = math.ceil(MARGIN * need * sample_seconds)
    remedy = f"set training.num_workers={needed_workers}"
    if needed_workers > cores:
        remedy += f" (this host has {cores} cores: pack the data first, see `overt data`)"
    return warn("loader speed", text, remedy)


def measured_step_seconds(run: Path) -> float | None:
    """Return seconds per step of an earlier session of this run, from its metrics."""
    rows = read_rows(run / "metrics.jsonl")
    numbers = (number_of(row.get("train/seconds_per_step")) for row in rows)
    recent = deque((seconds for seconds in numbers if seconds is not None), maxlen=20)
    return statistics.median(recent) if recent else None
