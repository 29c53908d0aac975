"""The least time that a recipe's training step can take on this chip: operations and bytes.

    python benchmarks/floor.py cotracker3_offline lbm           anywhere: no GPU is needed
    python benchmarks/floor.py pcdiff --set training.global_batch_size=64

The engine's own step runs on fake tensors. Counted are the operations of matrix products,
convolutions, attention and correlations, nothing computed twice, over what a matrix product reaches
on an H200 in this precision; and the bytes that have to move whatever the kernels are, over what a
device copy reaches:

    weights      read for the forward pass, the backward pass and the update, written by it
    frozen ones  read once
    gradients    written once, read once
    optimizer    its state read and written
    activations  what the step keeps for the backward pass as configured, written and read once
    batch        read once

The floor is the larger of both times: a step that reaches it does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from command import guarded

MATRIX_TFLOPS = 790.0  # bf16 and fp16, as measured on an H200
COPY_TB = 4.28  # TB/s, likewise
# Of the same chip as its maker states them: how other precisions compare.
RELATIVE = {"bf16": 1.0, "fp16": 1.0, "tf32": 494.0 / 989.0, "fp32": 67.0 / 989.0}


@dataclass(frozen=True)
class Floor:
    """What a step has to do."""

    flops: int
    weights: int  # bytes, like all that follow
    frozen: int
    gradients: int
    optimizer: int
    activations: int
    batch: int
    precision: str

    @property
    def matrix_seconds(self) -> float:
        return self.flops / (MATRIX_TFLOPS * 1e12 * RELATIVE[self.precision])

    @property
    def moved(self) -> int:
        """Bytes that have to be read or written."""
        twice = self.gradients + self.optimizer + self.activations
        return 4 * self.weights + self.frozen + 2 * twice + self.batch

    @property
    def copy_seconds(self) -> float:
        return self.moved / (COPY_TB * 1e12)

    @property
    def seconds(self) -> float:
        return max(self.matrix_seconds, self.copy_seconds)

    def within(self, peak: float) -> Floor:
        """Return the floor of a step that was seen to hold no more than `peak` bytes.

        Compiled code keeps less than the plan knows of.
        """
        held = self.weights + self.frozen + self.optimizer + self.batch
        kept = max(min(self.activations, int(peak) - held), 0)
        return dataclasses.replace(self, activations=kept)

    def words(self, seconds: float | None = None) -> str:
        """Return one line; with the seconds of a measured step, the share that it reaches."""
        text = (
            f"floor {self.seconds:.4f} s: {self.flops / 1e12:.2f} TFLOP {self.matrix_seconds:.4f} "
            f"s, {self.moved / 1e9:.1f} GB {self.copy_seconds:.4f} s"
        )
        return text if seconds is None else f"{text}; reached {self.seconds / seconds:.0%}"


def count(recipe: str, words: list[str]) -> Floor:
    """Count operations without recomputation, and the bytes that the step keeps as configured."""
    from overt.config import build_recipe, load
    from overt.config.batch import plan_batches
    from overt.tools.plan.engine_step import EngineStep, StepMemory

    def run(further: list[str]) -> tuple[StepMemory, Any]:
        config = load([f"recipe={recipe}", "data.root=none", *words, *further])
        built = build_recipe(config)
        size = plan_batches(config.training, 1).batch_size
        step = EngineStep(config, built, config.training.activation_checkpointing)
        return step.run(built.example_batch(size), size), config

    step, config = run([])
    again = getattr(getattr(config.settings, "model", None), "recompute", None)
    flops = step.flops
    if again not in (None, [], "none") or config.training.activation_checkpointing:
        nothing = "[]" if isinstance(again, list) else "none"
        further = [] if again is None else [f"model.recompute={nothing}"]
        flops = run([*further, "training.activation_checkpointing=false"])[0].flops
    steps = plan_batches(config.training, 1).accumulation_steps
    return Floor(
        flops * steps,
        step.parameters,
        step.frozen,
        step.gradients,
        step.optimizer,
        step.activations * steps,
        step.batch * steps,
        config.training.precision,
    )


class Counting:
    """A count in a separate process that sees no GPU, beside whatever this one does."""

    def __init__(self, recipe: str, words: list[str]) -> None:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, recipe, "--json", "--set", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def result(self) -> Floor | None:
        """Wait for it; None, and the reason on stderr, where it failed."""
        printed, problem = self.process.communicate()
        if self.process.returncode:
            print(f"no floor: {problem.strip()[-400:]}", file=sys.stderr)
            return None
        return Floor(**json.loads(printed.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for all recipes")
    parser.add_argument("--json", action="store_true", help="numbers alone, one line a recipe")
    options = parser.parse_args()
    for recipe in options.recipes:
        floor = count(recipe, options.set)
        shown = json.dumps(dataclasses.asdict(floor))
        print(shown if options.json else f"{recipe}: {floor.words()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
