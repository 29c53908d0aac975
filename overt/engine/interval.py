"""Sums of the steps between two log lines, kept on the device and read in one go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overt.checkpoint.plain_values import is_number
from overt.distributed import (
    World,
    all_reduce_sum,
    gather_objects,
    get_rank,
    get_world_size,
    is_main_process,
)
from overt.errors import CheckpointError, ConfigError
from overt.ops.float64 import sum_dtype
from overt.recipe import StepOutput


class Totals(NamedTuple):
    """The numbers of an interval, over all ranks."""

    sums: dict[str, float]
    steps: float  # that made an update
    losses: list[float]  # of every step; NaN where it was skipped
    rank_timings: list[list[float]]  # reported by each rank

    def means(self) -> dict[str, float]:
        """Return the mean of each number over the steps; NaN where there were none."""
        return {name: value / (self.steps or math.nan) for name, value in self.sums.items()}


def _differing(expected: Sequence[str], names: Sequence[str], where: str = "") -> str:
    """Explain losses and metrics that are not those of other micro-batches, steps or ranks."""
    different = [name for name in (*expected, *names) if (name in expected) != (name in names)]
    return (
        f"StepOutput holds {', '.join(names)}{where}, but {', '.join(expected)} before or "
        "elsewhere: losses and metrics are summed over micro-batches, steps and ranks. Return "
        f"{', '.join(different) or 'them'} always, "
        f"{'with 0 where nothing counts' if different else 'in the same order'}"
    )


# What the engine logs as train/NAME next to a recipe's losses and metrics.
ENGINE_NAMES = (
    "grad_norm", "lr", "epoch", "skipped_steps", "memory_gib", "seconds_per_step",
    "samples_per_second", "data_wait_share", "tflops_per_second", "flops_utilization",
)  # fmt: skip


def _refuse_taken(output: StepOutput) -> None:
    """Refuse names of which two values would be logged as one."""
    losses, metrics = output.losses, output.metrics
    taken = dict.fromkeys(ENGINE_NAMES, "the engine logs a value of this name")
    if len(losses) > 1 or "loss" in metrics:
        taken["loss"] = "train/loss is the sum of all losses"
    taken |= dict.fromkeys(losses.keys() & metrics.keys(), "it is both a loss and a metric")
    for name in (*losses, *metrics):
        if name in taken:
            kind = "loss" if name in losses else "metric"
            raise ConfigError(
                f"StepOutput holds a {kind} {name}, but {taken[name]}; give it another name"
            )


def _terms(output: StepOutput) -> dict[str, Tensor]:
    """Return losses and metrics by name; a single loss called `loss` is the total itself."""
    terms = {**output.losses, **output.metrics}
    terms.pop("loss", None)
    return terms


class Interval:
    """Sums of the steps since the last log line: kept on the device, added up and read only there.

    A step leaves its numbers as they are, since every operation on the device costs the host time.
    """

    LONGEST = 1024  # steps whose numbers are kept one by one

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []
        self.rows: list[list[Tensor]] = []  # of a step: applied, norm, numbers of each micro-batch
        self.sums: list[float] = []
        self.losses: list[float] = []  # this rank's part, step by step
        self.steps = 0.0
        self.has_steps = False  # made by this session: what they return is settled
        self.is_compared = False  # with the names of other ranks

    def add(self, outputs: list[StepOutput], applied: Tensor, grad_norm: Tensor) -> None:
        """Add this rank's part of one step; a skipped step does not count."""
        terms = [_terms(output) for output in outputs]
        names = ["loss", *terms[0], "grad_norm"]
        if not self.has_steps:
            _refuse_taken(outputs[0])
            if names != self.names:
                # Sums of a version with other metrics cannot be continued.
                self.names = names
                self.reset()
        self.has_steps = True
        row = [applied, grad_norm]
        for output, values in zip(outputs, terms, strict=True):
            if values.keys() != set(self.names[1:-1]):
                raise ConfigError(_differing(self.names[1:-1], list(values)))
            row += [output.total.detach()]
            row += [values[name].detach() for name in self.names[1:-1]]
        self.rows.append(row)
        if len(self.rows) >= self.LONGEST:
            self._settle()

    def totals(self, timings: Sequence[float] = ()) -> Totals:
        """Return the totals over all ranks, in one reduction. Every rank must call this."""
        self._compare_ranks()
        self._settle()
        rank, world_size, width = get_rank(), get_world_size(), len(timings)
        # Each rank fills separate slots with its timings: the sum then holds them all.
        slots = [0.0] * (rank * width) + [*timings] + [0.0] * ((world_size - rank - 1) * width)
        local = torch.tensor(
            [*self.sums, *self.losses, *slots], dtype=sum_dtype(self.device), device=self.device
        )
        packed = all_reduce_sum(local).tolist()
        sums, packed = packed[: len(self.sums)], packed[len(self.sums) :]
        losses, packed = packed[: len(self.losses)], packed[len(self.losses) :]
        by_rank = [packed[index * width : (index + 1) * width] for index in range(world_size)]
        return Totals(dict(zip(self.names, sums, strict=True)), self.steps, losses, by_rank)

    def state_dict(self) -> dict[str, Any]:
        """Return the totals over all ranks. Every rank must call this."""
        totals = self.totals()
        return {"sums": totals.sums, "steps": totals.steps, "losses": totals.losses}

    def load_state_dict(self, state: dict[str, Any], world: World) -> None:
        """Continue with the totals of an earlier session; the main rank carries them."""
        sums, losses = state["sums"], state.get("losses", [])
        if not all(map(is_number, [*sums.values(), *losses, state["steps"]])):
            raise CheckpointError("state.json: interval holds a value that is not a number")
        self.names = list(sums)
        self.sums = list(sums.values()) if world.is_main else [0.0] * len(sums)
        self.losses = list(losses) if world.is_main else [0.0] * len(losses)
        self.steps = state["steps"]
        self.has_steps = False

    def reset(self) -> None:
        self.rows = []
        self.sums, self.losses, self.steps = [0.0] * len(self.names), [], 0.0

    def _compare_ranks(self) -> None:
        """Refuse ranks with other names, once: numbers are added by their position."""
        if not self.has_steps or self.is_compared:
            return
        by_rank = gather_objects(self.names[1:-1])
        for rank, names in enumerate(by_rank):
            if names != by_rank[0]:
                raise ConfigError(_differing(by_rank[0], names, f" on rank {rank}"))
        self.is_compared = True

    def _settle(self) -> None:
        """Read what is still on the device, in one go, and add it up in the order of the steps."""
        if not self.rows:
            return
        numbers = torch.stack([number for row in self.rows for number in row]).tolist()
        width, begin = len(self.names) - 1, 0
        for row in self.rows:
            applied, norm, *values = numbers[begin : begin + len(row)]
            begin += len(row)
            self.losses.append(sum(values[::width]) if applied else math.nan)
            if not applied:
                continue
            self.steps += 1.0
            for index, value in enumerate(values):
                self.sums[index % width] += value
            # The same on every rank and for all micro-batches: it counts once.
            self.sums[-1] += norm if is_main_process() else 0.0
        self.rows = []
