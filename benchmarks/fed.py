"""Training fed by the real loader, from packed data and from ordinary files, against resident data.

    python benchmarks/fed.py                                   all recipes, 14 loader processes
    python benchmarks/fed.py cotracker3_offline hjepa --workers 8
    python benchmarks/fed.py hjepa_tiny --device cpu --workers 0 --small      anywhere, to try

One row for each recipe and storage: samples per second of the engine's steps on a batch that stays
on the device, of the same steps fed by the loader, the share, and the time that steps wait for data
in percent. Data are made first, at the official size of a sample, and are in the system's cache:
sequences of PNGs or packed raw frames, JPEGs of 500 x 375 or a pack with a shorter side of 256,
clouds of 400,000 points, pictures of people.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command import guarded, need_device, positive

from overt.errors import FAILED_EXIT_CODE, ConfigError, nearest

PACKED, FILES = "packed", "files"
RECIPES = (
    "cotracker3_offline", "cotracker3_online", "lbm", "hjepa", "ijepa_vitb16", "ijepa_vith14",
    "pcdiff", "blade_depthnet", "blade_posenet",
)  # fmt: skip
GOALS = {PACKED: 0.95, FILES: 0.9}


class Wanted(NamedTuple):
    """What a recipe needs of its data."""

    recipe: str
    samples: int  # of one step
    small: bool
    workers: int
    set: tuple[str, ...] = ()  # settings that were changed


def make_sequences(root: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Write Kubric's layout as PNGs and packed raw; return the settings of each."""
    from overt.data.tracking.packed import pack_sequences
    from overt.data.tracking.synthetic_kubric import write_sequences

    is_lbm = wanted.recipe.startswith("lbm")
    frames = 24 if is_lbm else 120
    sizes = {"frames": frames, "height": 512, "width": 512, "points": 2048}
    if wanted.small:
        sizes = {"frames": 24, "height": 72, "width": 72, "points": 128}
    count = max(wanted.samples, 2 if wanted.small else 4)
    write_sequences(root / FILES, count, **sizes)
    pack_sequences(root / FILES, root / PACKED, "raw")
    words = ["data.synthetic=null", "data.held_out=0"]
    if is_lbm:
        words += ["model.backbone_weights=random"]
    else:
        words += ["data.random_sequence_len=null"]
    return {name: [f"data.root={root / name}", *words] for name in (PACKED, FILES)}


def make_images(root: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Write JPEGs of two classes, and a pack of them with a shorter side of 256."""
    from PIL import Image

    from overt.data.images.folder import ImageFolder
    from overt.data.images.packed import pack_images

    rng = np.random.default_rng(0)
    width, height = (64, 48) if wanted.small else (500, 375)
    # A twentieth is held out.
    count = max(wanted.samples * 10 // 9 + 2, 16 if wanted.small else 512)
    for index in range(count):
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        path = root / FILES / f"class_{index % 2}" / f"{index:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)
    pack_images(ImageFolder(root / FILES), root / PACKED, side=None if wanted.small else 256)
    return {
        name: [f"data.root={root / name}", "data.synthetic=null", "data.held_out=0.05"]
        for name in (PACKED, FILES)
    }


def make_clouds(root: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Write clouds as `overt data prepare` leaves them; files are what there is."""
    from overt.data.skulls.lists import DEFECTS, SUFFIX
    from overt.data.skulls.prepare import write_lists

    rng = np.random.default_rng(0)
    # A skull has several defects; some skulls are held out.
    names = [f"{number:03d}" for number in range(max(wanted.samples // 2, 10))]
    points = 4_000 if wanted.small else 400_000
    cloud = rng.normal(size=(points, 3)).astype(np.float32) * 50 + 256
    folders = ["complete_skull"]
    folders += [
        f"{part}/{d}" for part in ("defective_skull", "implant") for d in DEFECTS["skullbreak"]
    ]
    for folder in folders:
        (root / FILES / folder).mkdir(parents=True)
        for name in names:
            np.save(root / FILES / folder / f"{name}{SUFFIX}.npy", cloud)
    write_lists(root / FILES, names, seed=0)
    return {FILES: [f"data.root={root / FILES}", "data.synthetic=null"]}


def make_people(root: Path, wanted: Wanted) -> dict[str, list[str]]:
    """Write pictures of people in HumanData's layout; files are what there is."""
    from overt.data.people.scenes import PeopleOptions
    from overt.data.people.synthetic import write_people

    body = "capsule"  # the quickest to render: a decoded picture is a picture
    options = PeopleOptions(size=64 if wanted.small else 512, body=body)
    count = max(wanted.samples, 8 if wanted.small else 192)
    write_people(root / FILES, "people", count, options, wanted.workers)
    source = (
        "{name: people, annotations: preprocessed_datasets/people.npz, images: datasets/people, "
        "weight: 1.0}"
    )
    words = [f"data.root={root / FILES}", f"data.sources=[{source}]", "data.synthetic=null"]
    words += [f"model.body.model={body}"]
    return {FILES: [*words, *write_backbone(root, wanted)]}


def write_backbone(root: Path, wanted: Wanted) -> list[str]:
    """Write random weights where a recipe insists on weights of frozen parts."""
    import torch

    from overt.config import build_recipe, load

    recipe = build_recipe(load([f"recipe={wanted.recipe}", "data.root=none", *wanted.set]))
    settings = recipe.settings.model  # type: ignore[attr-defined]
    model: Any = recipe.build_model()
    is_second = getattr(settings, "depthnet_checkpoint", "none") is None
    depthnet = model.depthnet if is_second else model
    words = []
    if settings.depth.freeze_backbone and settings.depth.backbone_checkpoint is None:
        weights = depthnet.depth_backbone.state_dict()
        depthnet.load_backbone(weights, "random")  # so that stage 1 knows its hash
        torch.save(weights, root / "backbone.pth")
        words.append(f"model.depth.backbone_checkpoint={root / 'backbone.pth'}")
    if is_second:
        torch.save(depthnet.state_dict(), root / "depthnet.pth")
        words.append(f"model.depthnet_checkpoint={root / 'depthnet.pth'}")
    return words


MAKERS = {
    "cotracker3": make_sequences,
    "lbm": make_sequences,
    "hjepa": make_images,
    "ijepa": make_images,
    "pcdiff": make_clouds,
    "blade": make_people,
}


def maker_of(recipe: str) -> Callable[[Path, Wanted], dict[str, list[str]]]:
    """Return the function that makes the data of a recipe."""
    family = recipe.split("_")[0]
    if family not in MAKERS:
        raise ConfigError(
            f"{recipe}: fed.py makes no data for it{nearest(recipe, RECIPES)}; use a recipe whose "
            f"name begins with {', '.join(MAKERS)}"
        )
    return MAKERS[family]


def measure(recipe: str, words: list[str], folder: str, options: argparse.Namespace) -> Any:
    """Samples per second on resident data and fed by the loader, and the share of waiting."""
    import torch

    from overt.config import build_recipe, load
    from overt.distributed import init_distributed
    from overt.engine.loader import StepBatch
    from overt.engine.strategy.graph import WARM_UP
    from overt.engine.trainer import Trainer

    settings = [
        f"recipe={recipe}",
        f"output_dir={folder}/runs",
        f"training.device={options.device}",
    ]
    settings += [f"training.num_workers={options.workers}", "logging.use_tensorboard=false"]
    config = load([*settings, *words, *options.set])
    world = init_distributed(config.training.device)
    built = build_recipe(config)
    built.check_evaluation_data = check_nothing  # type: ignore[method-assign]
    trainer = Trainer(config, built, world)
    size = trainer.plan.global_batch_size

    def run(steps: int) -> tuple[float, float]:
        began, waited = time.perf_counter(), 0.0
        for _ in range(steps):
            trainer.train_step()
            waited += waits.pop()
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, waited

    waits: list[float] = []
    fed = trainer.loader.next_step

    def watched() -> StepBatch:
        batch = fed()
        waits.append(batch.wait_seconds)
        return batch

    trainer.loader.next_step = watched  # type: ignore[method-assign]
    # Until what was read beforehand is used up, and a CUDA graph is recorded.
    run(WARM_UP + 2 + 2 * options.workers)
    steps = options.steps
    seconds, waited = run(steps)
    keep_batch(trainer)
    trainer.loader.next_step, fed = watched, trainer.loader.next_step  # type: ignore[method-assign]
    alone, _ = run(steps)
    trainer.close()
    return {
        "resident": steps * size / alone,
        "fed": steps * size / seconds,
        "wait": waited / seconds,
    }


def check_nothing() -> None:
    """Nothing is scored; a function of the module reaches loader processes, a lambda does not."""


def keep_batch(trainer: Any) -> None:
    """Train on the next batch from now on, which stays on the device; the recipe prepares it there
    in every step, as it does with a batch of the loader."""
    from overt.engine.loader import MicroBatch, StepBatch
    from overt.engine.strategy.graph import WARM_UP
    from overt.nested import map_tensors

    def copy(tensor: Any) -> Any:
        return tensor.to(trainer.device)

    batch = trainer.loader.next_step()
    micros = [
        MicroBatch((), map_tensors(micro.batch, copy), is_padding=False)
        for micro in batch.micro_batches
    ]
    kept = StepBatch(micros, batch.samples, 0.0)
    trainer.loader.next_step = lambda: kept
    for _ in range(WARM_UP + 2):
        trainer.train_step()


def rows_of(recipe: str, options: argparse.Namespace) -> None:
    """Print the rows of one recipe."""
    from overt.config import load
    from overt.config.batch import plan_batches

    training = load([f"recipe={recipe}", "data.root=none", *options.set]).training
    samples = plan_batches(training, 1).global_batch_size
    wanted = Wanted(recipe, samples, options.small, options.workers, tuple(options.set))
    with tempfile.TemporaryDirectory() as folder:
        storages = maker_of(recipe)(Path(folder), wanted)
        for storage, words in storages.items():
            with redirect_stdout(sys.stderr if options.json else sys.stdout):
                numbers = measure(recipe, words, folder, options)
            if options.json:
                print(json.dumps({"recipe": recipe, "storage": storage, **numbers}), flush=True)
                continue
            fraction = numbers["fed"] / numbers["resident"]
            print(
                f"| {recipe} | {storage} | {numbers['resident']:.1f} | {numbers['fed']:.1f} | "
                f"{fraction:.0%} (goal {GOALS[storage]:.0%}) | {numbers['wait']:.1%} |",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--workers", type=int, default=14, help="loader processes")
    parser.add_argument("--steps", type=positive, default=40, help="measured of each")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for all recipes")
    parser.add_argument("--small", action="store_true", help="small samples, to try the script")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a recipe at most")
    parser.add_argument("--json", action="store_true", help="JSON lines alone")
    parser.add_argument("--here", action="store_true", help="in this process; one recipe")
    options = parser.parse_args()
    need_device(options.device)
    if options.here:
        rows_of(options.recipes[0], options)
        return 0
    for recipe in options.recipes:
        maker_of(recipe)
    table = sys.stderr if options.json else sys.stdout  # with --json, stdout has JSON lines only
    print(
        "| recipe | storage | resident samples/s | fed samples/s | share | data wait |", file=table
    )
    print("|---|---|---|---|---|---|", file=table, flush=True)
    exit_code = 0
    for recipe in options.recipes:  # each in a separate process, with the whole memory
        words = [word for word in sys.argv[1:] if word not in options.recipes]
        command = [sys.executable, __file__, recipe, "--here", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
        except subprocess.TimeoutExpired:
            exit_code = max(exit_code, FAILED_EXIT_CODE)
            print(f"| {recipe} | stopped after {options.limit:g} s |", file=table, flush=True)
            continue
        for line in done.stdout.splitlines():
            if line.startswith(("|", "{")):
                print(line, flush=True)
        if done.returncode:
            exit_code = max(exit_code, abs(done.returncode))
            print(f"| {recipe} | failed |", file=table, flush=True)
            print(done.stderr.strip()[-800:], file=sys.stderr, flush=True)
    return exit_code


if __name__ == "__main__":
    raise SystemExit(guarded(main))
