"""Speed of sampling implants with PCDiff at its official size, on weights as they are made.

    python benchmarks/sampling.py                          on CUDA, against the published code
    python benchmarks/sampling.py pcdiff_tiny --device cpu    anywhere, to try the script

Measured are reverse steps of one batch, the geometry of every step included, as a plain loop and,
on CUDA, as a recorded graph. What 1000 DDPM steps and 50 DDIM steps take follows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from command import guarded, need_device, positive

from overt.config import build_recipe, load
from overt.distributed import init_distributed
from overt.engine.precision import AUTOCAST, set_precision
from overt.errors import ConfigError
from overt.recipes.pcdiff.recipe import PCDiffRecipe
from overt.recipes.pcdiff.sampling import ReverseStep, make_plan, record, refuse_overflow

PUBLISHED_MS, GOAL_MS = 690.0, 10.0  # per reverse step, batch 1, on an H200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="pcdiff")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=positive, default=1, help="implants sampled at a time")
    parser.add_argument("--steps", type=positive, default=20, help="reverse steps that are timed")
    options = parser.parse_intermixed_args()
    need_device(options.device)
    words = [f"recipe={options.recipe}", "data.root=none", f"training.device={options.device}"]
    config = load([*words, *options.overrides])
    world = init_distributed(config.training.device)
    set_precision(config.training.precision, config.training.deterministic)
    recipe = build_recipe(config)
    if not isinstance(recipe, PCDiffRecipe):
        raise ConfigError(
            f"recipe={options.recipe} does not sample implants; use pcdiff, or pcdiff_tiny on a CPU"
        )
    torch.manual_seed(0)
    model = recipe.build_model().to(world.device).eval()
    known = recipe.example_batch(options.batch).known.to(world.device)
    settings = config.settings
    plan = make_plan(settings.model.diffusion, settings.evaluation)
    dtype = AUTOCAST.get(config.training.precision)
    cuda = world.device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{options.recipe} {' '.join(options.overrides)} batch {options.batch} on {name}", end="")
    print(f", {config.training.precision}, torch {torch.__version__}")
    with (
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        for way in ("plain", "graph") if cuda else ("plain",):
            step = ReverseStep(model, known, settings.data.num_implant_points, plan)
            run = record(step) if way == "graph" else step
            milliseconds = timed(run, step, options.steps, cuda)
            refuse_overflow(float(step.fullest))
            peak = f", peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if cuda else ""
            print(
                f"  {way}: {milliseconds:.2f} ms per reverse step{peak}; DDPM-1000 "
                f"{milliseconds:.1f} s, DDIM-50 {milliseconds * 0.05:.2f} s",
                end="",
            )
            is_official = cuda and options.recipe == "pcdiff" and options.batch == 1
            print(
                f" (published {PUBLISHED_MS:.0f} ms: {PUBLISHED_MS / milliseconds:.1f} x faster, "
                f"goal {GOAL_MS:.0f} ms)"
                if is_official
                else ""
            )
    return 0


def timed(run: Callable[[], None], step: ReverseStep, steps: int, cuda: bool) -> float:
    """Milliseconds of a step in the middle of sampling, the mean of `steps`."""

    def restart() -> None:
        step.x.normal_()
        step.noise.normal_()
        step.times.fill_(len(step.arrays.betas) // 2)
        step.fullest.zero_()

    for _ in range(3):
        restart()
        run()
    restart()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(steps):
        run()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e3


if __name__ == "__main__":
    raise SystemExit(guarded(main))
