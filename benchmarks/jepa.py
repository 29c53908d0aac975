"""What an H-JEPA step does not need for its gradient: drawing masks, and watching for collapse.

    python benchmarks/jepa.py hjepa                        on CUDA, at the recipe's size
    python benchmarks/jepa.py hjepa_tiny --device cpu      anywhere, to try the script

Printed are the host's time for the masks of an image, that of a step without the monitor, with it
between two looks, and of a look, and what the monitor costs at its cadence.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
from command import guarded, need_device, positive
from step import STEPS_AT_A_TIME, build, one_step

from overt.data.rng import sample_rng
from overt.distributed import World
from overt.engine.interval import Interval
from overt.engine.strategy.graph import WARM_UP, GraphedPass
from overt.engine.trainer import Trainer
from overt.errors import ConfigError
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import Masks


def mask_milliseconds(settings: Settings, images: int = 2000) -> float:
    """Contexts and targets of one image, drawn on one core; the median of five rounds."""
    masks = Masks(settings)
    rounds = []
    for number in range(5):
        generators = [sample_rng(0, number, index) for index in range(images)]
        began = time.process_time()
        for rng in generators:
            masks.draw(rng)
        rounds.append((time.process_time() - began) / images * 1e3)
    return statistics.median(rounds)


def step_milliseconds(trainer: Trainer, world: World, steps: int, every: int | None) -> list[float]:
    """Training steps with a look every N steps, or with the monitor switched off."""
    settings = trainer.config.settings
    settings.evaluation.collapse.every_steps = every
    trainer.progress.interval = Interval(world.device)  # a step's numbers change with the monitor
    trainer.state.step += 1  # from there on, a look falls on every step or on none
    if trainer.graphed is not None:
        trainer.graphed = GraphedPass(trainer.run_pass, trainer.parameters)
    for _ in range(WARM_UP + 2):
        one_step(trainer)
    times = []
    for _ in range(steps):
        _wait(world)
        began = time.perf_counter()
        for _ in range(STEPS_AT_A_TIME):
            one_step(trainer)
        _wait(world)
        times.append((time.perf_counter() - began) / STEPS_AT_A_TIME * 1e3)
    return times


def _wait(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=positive, default=10)
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_intermixed_args()
    need_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        trainer, world = build(options.recipe, options.overrides, folder, options.device)
        settings = trainer.config.settings
        cadence = isinstance(settings, Settings) and settings.evaluation.collapse.every_steps
        if not cadence:
            raise ConfigError(
                f"recipe={options.recipe} has no monitor of collapse; use a recipe of H-JEPA, with "
                "evaluation.collapse.every_steps set"
            )
        masks = mask_milliseconds(settings)
        rounds: dict[int | None, list[float]] = {None: [], 10**9: [], 1: []}
        for _ in range(options.rounds):  # in turns: what drifts, drifts for all of them
            for every, times in rounds.items():
                times += step_milliseconds(trainer, world, options.steps, every)
        without, between, looking = map(statistics.median, rounds.values())
        trainer.close()
    cost = (between - without) + (looking - between) / cadence
    print(f"{options.recipe} {' '.join(options.overrides)} on {world.device}")
    print(f"  masks {masks:.3f} ms per image and core (goal 0.1)")
    print(f"  step without monitor {without:.2f} ms, between looks {between:.2f} ms")
    print(f"  a look {looking - between:.2f} ms, one in {cadence} steps")
    print(f"  monitor {cost:.3f} ms per step, {cost / without:.2%} of it (goal 1%)")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
