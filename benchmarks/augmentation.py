"""Clips augmented by the loader's processes against clips augmented on the training device.

    python benchmarks/augmentation.py cotracker3_offline training.compile=blocks \\
        training.cuda_graph=true --workers 2 4 8 --storage folders raw
    python benchmarks/augmentation.py lbm training.cuda_graph=true --frames 48 --count 4
    python benchmarks/augmentation.py cotracker3_tiny --device cpu --frames 8 --size 64 64

A point tracker's training from files: the engine's steps, fed by N loader processes. Before
that, what one clip takes of a core and of the device. Sequences are synthetic, folders of PNGs or
packed by a storage of `overt data pack`, and in the system's cache; all clips have one length.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from command import guarded, need_device, positive

from overt.config import build_recipe, load
from overt.data.rng import sample_rng
from overt.data.tracking.packed import STORAGES, pack_sequences
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.distributed import World, init_distributed
from overt.engine.loader import StepLoader
from overt.engine.strategy.graph import WARM_UP
from overt.engine.trainer import Trainer
from overt.nested import map_tensors

FOLDERS = "folders"  # of PNGs, not packed
PLACES = {"by the loader": False, "on the device": True}


def settings(options: argparse.Namespace, folder: str, storage: str, on_device: bool) -> list[str]:
    height, width = options.size
    frames, points = options.frames // 2, min(512, options.points // 4)
    clips = {
        "cotracker3": [
            f"data.sequence_len={frames}",
            "data.random_sequence_len=null",
            f"data.traj_per_sample={points}",
        ],
        "lbm": [f"data.frames={frames}"],
    }
    return [
        f"recipe={options.recipe}",
        f"output_dir={folder}/runs",
        f"data.root={folder}/{storage}",
        "data.synthetic=null",
        "data.held_out=0",
        "data.augment=true",
        f"data.augment_on_device={str(on_device).lower()}",
        f"data.crop_size={[height * 3 // 4, width]}",
        *clips[options.recipe.split("_")[0]],
        f"training.device={options.device}",
        "training.num_workers=0",
        "logging.use_tensorboard=false",
        *options.overrides,
    ]


def synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def cost_of_a_clip(trainer: Trainer, recipe: Any, clips: int) -> tuple[float, float]:
    """Mean seconds of a core for a clip, and of copying it to the device and finishing it there."""
    source = recipe.build_dataset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a loader process
    reading, finishing = [], []
    for index in range(clips):
        began = time.perf_counter()
        sample = source.sample(index % len(source), sample_rng(0, 0, index))
        reading.append(time.perf_counter() - began)
        batch = recipe.collate([sample])
        if trainer.world.device.type == "cuda":
            batch = map_tensors(batch, torch.Tensor.pin_memory)
        trainer.to_device(batch)  # to warm up
        synchronize(trainer.world)
        began = time.perf_counter()
        trainer.to_device(batch)
        synchronize(trainer.world)
        finishing.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return statistics.fmean(reading), statistics.fmean(finishing)


def clips_per_second(trainer: Trainer, recipe: Any, workers: int, clips: int) -> float:
    """Training with this recipe's clips, read by N processes."""
    trainer.loader = StepLoader(
        recipe.build_dataset(),
        recipe.collate,
        trainer.plan,
        trainer.world,
        seed=0,
        drop_last=False,
        num_workers=workers,
    )

    def train(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            trainer.train_step()
        synchronize(trainer.world)
        return time.perf_counter() - began

    # Until the loader has nothing left that it read beforehand, and a CUDA graph is recorded.
    train(WARM_UP + 2 + 2 * workers)
    steps = max(1, clips // trainer.plan.global_batch_size)
    seconds = train(steps)
    trainer.loader.close()
    return steps * trainer.plan.global_batch_size / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, nargs="+", default=[4], help="loader processes")
    parser.add_argument("--clips", type=positive, default=40, help="trained on for each figure")
    parser.add_argument("--count", type=positive, default=2, help="sequences")
    parser.add_argument(
        "--frames", type=positive, default=120, help="of a sequence; a clip has half"
    )
    parser.add_argument("--size", type=positive, nargs=2, default=(512, 512), metavar=("H", "W"))
    parser.add_argument(
        "--storage", nargs="+", choices=(FOLDERS, *STORAGES), default=[FOLDERS], help="of sequences"
    )
    parser.add_argument("--points", type=positive, default=2048)
    options = parser.parse_intermixed_args(arguments)
    need_device(options.device)
    height, width = options.size
    with tempfile.TemporaryDirectory() as folder:
        folders = f"{folder}/{FOLDERS}"
        sizes = {"frames": options.frames, "height": height, "width": width}
        write_sequences(folders, options.count, points=options.points, **sizes)
        world = init_distributed(options.device)
        config = load(settings(options, folder, FOLDERS, on_device=False))
        recipe = build_recipe(config)
        recipe.check_evaluation_data = lambda: None  # type: ignore[method-assign]  # nothing is scored
        trainer = Trainer(config, recipe, world)
        print(f"{options.recipe} {' '.join(options.overrides)}")
        for storage in options.storage:
            if storage != FOLDERS:
                pack_sequences(folders, f"{folder}/{storage}", storage)
            print(f"  clips of {options.frames // 2} frames from {options.count} {storage}")
            recipes = {
                name: build_recipe(load(settings(options, folder, storage, on_device)))
                for name, on_device in PLACES.items()
            }
            for name, recipe in recipes.items():
                core, device = cost_of_a_clip(trainer, recipe, max(1, options.clips // 2))
                print(
                    f"    augmented {name}: {core:6.3f} s of a core, {1000 * device:6.1f} ms to "
                    f"the {world.device.type} and there"
                )
            for workers in options.workers:
                for name, recipe in recipes.items():
                    speed = clips_per_second(trainer, recipe, workers, options.clips)
                    print(f"    {workers:2} loader processes, {name}: {speed:6.2f} clips/s")
        trainer.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
