"""A tracker's whole training: clips per second of generator, step and evaluation; minutes to AJ.

    python benchmarks/tracker_training.py cotracker3_small data.textures=photographs/train \\
        evaluation.dataset_root=data/moving training.compile=blocks
    python benchmarks/tracker_training.py --run runs/cotracker3_small

The first command measures the parts; what `on_device` does (making clips, augmenting, labelling)
is the generator. Its launches overlap with the step before, so what it costs is the difference to a
step on clips that stay on the device. The second command reads a finished run: when its evaluations
reached AJ 50, 60 and 70, from the start of the command, compilation, evaluations and saving
included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from command import guarded, need_device, positive
from fed import keep_batch

from overt.config import build_recipe, load
from overt.distributed import init_distributed
from overt.engine.strategy.graph import WARM_UP
from overt.engine.trainer import Trainer
from overt.run.events import Started
from overt.run.reader import read_rows

AJ = "evaluation/average_jaccard"
GOALS = (0.5, 0.6, 0.7)


def seconds_of(function: Callable[[], object], times: int) -> float:
    """Mean seconds of a call, the device's work included."""

    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    for _ in range(times):
        function()
    wait()
    return (time.perf_counter() - began) / times


def measure(recipe_name: str, overrides: Sequence[str], device: str, steps: int) -> list[str]:
    """Return a line for the generator, the step and the evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"output_dir={folder}", f"training.device={device}", "logging.use_tensorboard=false"]
        config = load([f"recipe={recipe_name}", *own, *overrides])
        recipe: Any = build_recipe(config)
        trainer = Trainer(config, recipe, init_distributed(device))
        clips = trainer.plan.global_batch_size
        batch = recipe.example_batch(trainer.plan.batch_size)
        for _ in range(WARM_UP + 2):  # kernels are compiled, a CUDA graph is recorded
            trainer.train_step()
        trainer.to_device(batch)
        made = seconds_of(lambda: trainer.to_device(batch), steps)
        stepped = seconds_of(trainer.train_step, steps)
        keep_batch(trainer)
        resident = seconds_of(trainer.train_step, steps)
        began = time.perf_counter()
        with torch.no_grad():
            rows = recipe.evaluate_rows(trainer.model.eval(), trainer.world)
        scored = time.perf_counter() - began
        trainer.close()
    fraction = made * clips / trainer.plan.batch_size / stepped
    rate = trainer.plan.batch_size / made
    cost = 1 - resident / stepped
    return [
        f"generator   {rate:8.1f} clips/s, alone {fraction:.1%} of a step",
        f"step        {clips / stepped:8.1f} clips/s, generator and loader included",
        f"resident    {clips / resident:8.1f} clips/s, the same clips again: "
        f"generator and loader cost {cost:.1%} of a step",
        f"evaluation  {len(rows) / scored:8.2f} clips/s, {len(rows)} clips in {scored:.1f} s",
    ]


def start_of(events: Iterable[Mapping[str, Any]]) -> float:
    """Return when the command of a run was started, by what its first step waited for."""
    for event in events:
        if event.get("kind") == Started.kind:
            spent = (value for name, value in event.items() if name not in ("time", "kind", "step"))
            return float(event["time"]) - sum(map(float, spent))
    raise SystemExit("the events of this run do not say when it started")


def minutes_to(start: float, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each goal: when an evaluation first reached it."""
    scores = [  # time, step, AJ
        (float(row["time"]) - start, int(row["step"]), float(row[AJ])) for row in rows if AJ in row
    ]
    if not scores:
        return [f"no {AJ} in the metrics of this run"]
    lines = []
    for goal in GOALS:
        reached = next((entry for entry in scores if entry[2] >= goal), None)
        best = max(score for *_, score in scores)
        when = (
            f"not reached; best {100 * best:.1f}"
            if reached is None
            else f"{reached[0] / 60:.1f} minutes, step {reached[1]}"
        )
        lines.append(f"AJ {100 * goal:.0f}  {when}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", help="what to measure; with --run nothing")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="read what this run wrote")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=positive, default=20, help="measured for each figure")
    options = parser.parse_intermixed_args(arguments)
    if options.recipe is None and options.run is None:
        parser.error("name a recipe to measure, or --run FOLDER to read")
    if options.recipe is not None:
        need_device(options.device)
        lines = measure(options.recipe, options.overrides, options.device, options.steps)
        print("\n".join(lines))
    if options.run is not None:
        start = start_of(read_rows(options.run / "events.jsonl"))
        print("\n".join(minutes_to(start, read_rows(options.run / "metrics.jsonl"))))
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
