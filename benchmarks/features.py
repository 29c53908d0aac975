"""How fast frozen features are computed and scored, and what 1.28 million images would take.

    python benchmarks/features.py                                    50,000 images of 32 pixels
    python benchmarks/features.py --recipe ijepa_vitb16 --images 4000     JPEG files of 256 pixels
    python benchmarks/features.py --device cpu --images 200 --small  anywhere, to try the script

Writes random images of the recipe's kind (packed bytes for CIFAR-10, else JPEG files), reads them
with loader processes, encodes them, and scores k-NN with the full bank and a sweep of 20 linear
probes, stage by stage. A rate is images per second of a stage; the projection divides by it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from command import guarded

from overt.config import build_recipe, load
from overt.data.images.packed import pack_arrays
from overt.distributed import World, init_distributed
from overt.engine.precision import AUTOCAST, set_precision
from overt.metrics.features import knn_accuracies
from overt.metrics.probe_sweep import linear_sweep_accuracy
from overt.metrics.probes import ProbeSettings
from overt.recipes.hjepa import evaluation

IMAGENET = 1_281_167
FILE_SIDE = 256  # pixels of a JPEG file
CLASSES = tuple(map(str, range(10)))
SMALL = (
    "model.embed_dim=32", "model.depth=1", "model.num_heads=2", "evaluation.batch_size=50",
    "training.precision=fp32",
)  # fmt: skip

Value = TypeVar("Value")


def write(folder: Path, count: int, side: int | None, seed: int) -> None:
    """Write random images: a pack of `side` pixels, or JPEG files one folder per class."""
    generator = np.random.default_rng(seed)
    if side is not None:
        images = generator.integers(0, 256, (count, side, side, 3), np.uint8)
        names = [str(index) for index in range(count)]
        pack_arrays(images, np.arange(count) % len(CLASSES), names, CLASSES, folder)
        return
    from PIL import Image

    for index in range(count):
        path = folder / CLASSES[index % len(CLASSES)] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = generator.integers(0, 256, (FILE_SIDE // 8, FILE_SIDE // 8, 3), np.uint8)
        Image.fromarray(coarse).resize((FILE_SIDE, FILE_SIDE)).save(path, quality=90)


def timed(world: World, work: Callable[[], Value]) -> tuple[Value, float]:
    """Return the result of `work` and its seconds."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    result = work()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="ijepa_cifar")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--workers", type=int, help="loader processes; by default the recipe's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny encoder")
    options = parser.parse_args()
    world = init_distributed(options.device)
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder), world)
    return 0


def measure(options: argparse.Namespace, folder: Path, world: World) -> None:
    words = [
        f"recipe={options.recipe}",
        f"data.root={folder}/train",
        f"data.val_root={folder}/test",
    ]
    words += [
        f"training.device={options.device}",
        "evaluation.max_samples=null",
        "training.num_steps=1",
        "training.num_epochs=null",
    ]
    words += SMALL if options.small else ()
    words += [] if options.workers is None else [f"evaluation.num_workers={options.workers}"]
    config = load(words)
    recipe: Any = build_recipe(config)
    settings = recipe.settings.evaluation
    side = config.settings.data.image_size[0] if config.settings.data.image_size[0] <= 64 else None
    tests = max(10, options.images // 5)
    for part, count, seed in (("train", options.images, 0), ("test", tests, 1)):
        write(folder / part, count, side, seed)
    model = recipe.build_model().to(world.device).eval()
    training, held_out = recipe.scored_sets()
    set_precision(config.training.precision, deterministic=False)
    dtype = AUTOCAST.get(config.training.precision)
    encode = partial(evaluation.pooled_features, model, settings.layers)

    def collect(images: Any) -> Any:
        with torch.inference_mode(), torch.autocast(world.device.type, dtype, enabled=bool(dtype)):
            return evaluation.collect_features(encode, images, settings, world)

    test, _ = timed(world, lambda: collect(held_out))  # kernels are chosen
    used = np.arange(len(training))
    batch = evaluation.read_images(training, used, range(min(len(used), settings.batch_size)))
    pixels = batch.values.to(world.device)

    def encode_only() -> None:
        with torch.inference_mode(), torch.autocast(world.device.type, dtype, enabled=bool(dtype)):
            for _ in range(5):
                encode(pixels)

    encode_only()
    seconds = {"encode, images on the device": timed(world, encode_only)[1] / 5 / len(pixels)}
    bank, elapsed = timed(world, lambda: collect(training))
    seconds["read and encode"] = elapsed / options.images
    device = world.device
    learned = bank.values.to(device), bank.labels.to(device)
    pairs = (*learned, test.values.to(device), test.labels.to(device))
    k = min(20, len(bank.values))
    _, knn = timed(world, lambda: knn_accuracies(*pairs, [k]))
    probe = ProbeSettings(epochs=50, batch_size=1024)
    _, linear = timed(world, lambda: linear_sweep_accuracy(*pairs, settings=probe))
    name = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    kind = "packed" if side else "JPEG files"
    print(f"{options.recipe}, {options.images:,} images ({kind}), {settings.num_workers} loader")
    print(f"processes, {config.training.precision}, {name}, torch {torch.__version__}\n")
    print("| stage | images/s | these images | 1.28 million |\n| --- | --- | --- | --- |")
    for stage, each in seconds.items():
        shown = f"{options.images * each:,.1f} s | {IMAGENET * each / 60:,.1f} min"
        print(f"| {stage} | {1 / each:,.0f} | {shown} |")
    # k-NN grows with bank and queries: ImageNet has 50,000 queries.
    factor = IMAGENET / options.images * 50_000 / tests
    print(f"| k-NN, {tests:,} queries | | {knn:.1f} s | {knn * factor / 60:,.1f} min |")
    # 50 epochs here; a head of 1,000 classes costs more than one of 10, so this is a lower bound.
    print(
        f"| 20 linear probes, 50 epochs | | {linear:.1f} s | "
        f"{linear * IMAGENET / options.images / 60:,.1f} min |"
    )
    total = options.images * seconds["read and encode"] + knn + linear
    print(f"\nall of it: {total:.1f} s for {options.images:,} images")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
