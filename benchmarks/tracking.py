"""How fast queries are followed one at a time, as the tables of CoTracker3 are made.

    python benchmarks/tracking.py                                   full size, on CUDA
    python benchmarks/tracking.py cotracker3_tiny --device cpu      anywhere, to try the script

The predictor encodes a video once and runs the queries in batches, as it is and compiled (`overt
evaluate --compile`); against it the same queries one after the other, the video encoded again for
each, as one writes it first. All take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from command import guarded, need_device, positive

from overt.config import build_recipe, load
from overt.engine.strategy.blocks import compile_model
from overt.errors import ConfigError
from overt.recipes.cotracker3.model import CoTracker3Offline
from overt.recipes.cotracker3.predictor import Predictor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="cotracker3_offline")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--frames", type=positive, default=48)
    parser.add_argument("--queries", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    options = parser.parse_args(arguments)
    need_device(options.device)
    config = load([f"recipe={options.recipe}", "data.root=none"])
    settings = config.settings.evaluation
    height, width = settings.resolution
    torch.manual_seed(0)
    recipe = build_recipe(config)
    model = recipe.build_model().eval().to(options.device)
    if not isinstance(model, CoTracker3Offline):
        raise ConfigError(
            f"recipe={options.recipe} is not an offline CoTracker3; use cotracker3_offline, or "
            "cotracker3_tiny on a CPU"
        )
    compiled = deepcopy(model)
    training = replace(config.training, compile="blocks", compile_backend=options.backend)
    compile_model(recipe, compiled, training)
    predict, predict_compiled = (
        Predictor(
            one,
            resolution=(height, width),
            iters=config.settings.model.eval_iters,
            single_point=True,
            queries_per_batch=settings.queries_per_batch,
        )
        for one in (model, compiled)
    )
    video = torch.randint(256, (1, options.frames, 3, height, width), dtype=torch.uint8)
    video = video.to(options.device)
    places = torch.rand(1, options.queries, 2) * torch.tensor([width - 1.0, height - 1.0])
    queries = torch.cat([torch.zeros(1, options.queries, 1), places], dim=-1).to(options.device)

    def anew() -> None:
        for number in range(options.queries):
            predict(video, queries[:, number : number + 1])

    ways: dict[str, Callable[[], object]] = {
        "encoded for each": anew,
        "encoded once": lambda: predict(video, queries),
        "and compiled": lambda: predict_compiled(video, queries),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, work in ways.items():
            began = time.perf_counter()
            autocast = torch.autocast(options.device, torch.bfloat16, options.device == "cuda")
            with torch.inference_mode(), autocast:
                work()
            if options.device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    speeds = {name: options.queries / statistics.median(times[name]) for name in times}
    kind = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(
        f"{options.recipe} on {kind}: {options.queries} queries one at a time, {options.frames} "
        f"frames of {height}x{width}"
    )
    for name, speed in speeds.items():
        ratio = speed / speeds["encoded for each"]
        print(f"  {name:<17} {speed:8.2f} queries/s  {ratio:5.1f} x")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
