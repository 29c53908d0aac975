"""What self-supervised encoders learn of CIFAR-10 in a few minutes, in one table.

    overt data cifar10 SOURCE data/cifar10
    python benchmarks/cifar.py --steps 3000 --seeds 0 1 2           as in the table of docs/ssl.md
    python benchmarks/cifar.py --minutes 60 --fine-tune 20          and a column of fine-tuning
    python benchmarks/cifar.py --show benchmarks/cifar_rows.jsonl   the rows that were measured
    python benchmarks/cifar.py --device cpu --small --steps 2       anywhere, to try the script

Every method trains the same encoder through the engine, for `--steps` or, with `--minutes`, for the
same wall-clock time: the number of steps then follows from its measured rate. Raw pixels and the
encoder with its random weights are scored in the same way: k-NN with all training images as bank,
and linear probes with all labels, a tenth and a hundredth of them, each the best of 20 by a tenth
of the training images. Fine-tuning trains the whole encoder with labels for some epochs
(recipe=finetune_cifar); from random weights that is the baseline without pretraining. The row
`control` is I-JEPA with targets from another image: what is learned without anything to predict.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from cifar_pictures import draw_neighbors, draw_photographs
from command import guarded, positive
from torch import Tensor

from overt.config import Config, build_recipe, load
from overt.distributed import World, init_distributed
from overt.engine.trainer import Trainer
from overt.errors import Preempted, exit_code_of
from overt.recipe import Recipe
from overt.recipes.hjepa import evaluation
from overt.recipes.hjepa.encoder import FeatureModel
from overt.recipes.hjepa.encoder_recipe import EncoderRecipe
from overt.recipes.hjepa.model import HJEPA
from overt.recipes.hjepa.recipe import HJEPARecipe

RECIPES = {
    "simclr": "simclr_cifar",
    "ijepa": "ijepa_cifar",
    "hjepa": "hjepa_cifar",
    "cjepa": "cjepa_cifar",
    "mae": "mae_cifar",
    "supervised": "supervised_cifar",
    "control": "ijepa_cifar",
}
COLUMNS = {
    "knn_top1": "k-NN",
    "linear_top1": "linear",
    "linear_top1_0.1": "10 % labels",
    "linear_top1_0.01": "1 % labels",
}
TUNED = "fine_tuned"  # and fine_tuned_0.1 with a tenth of the labels
TRAINING_IMAGES = 50_000
# Steps before the clock runs: kernels are chosen, graphs recorded, loader queues drained.
WARM_UP, TIMED = 40, 60
SMALL = (
    "model.embed_dim=32", "model.depth=2", "model.num_heads=2", "model.predictor.width=32",
    "model.predictor.depth=1", "model.predictor.num_heads=2", "model.head.hidden=32",
    "training.batch_size=16", "training.num_workers=1", "training.precision=fp32",
    "evaluation.max_samples=200", "evaluation.batch_size=100", "evaluation.k=5",
    "evaluation.linear_probe.epochs=5",
)  # fmt: skip

Row = dict[str, Any]


class RawPixels(FeatureModel):
    """No encoder: the features of an image are its pixels."""

    def last_features(self, images: Tensor, layers: int = 1) -> list[Tensor]:
        return [self.pixels(images).flatten(1)[:, None]]


class WrongTargets(HJEPA):
    """I-JEPA whose targets are those of the next image of the batch."""

    def encode_targets(self, images: Tensor) -> Tensor:
        return super().encode_targets(images.roll(1, 0))


class ControlRecipe(HJEPARecipe):
    """I-JEPA that cannot learn to predict."""

    model_class = WrongTargets


def build(method: str, config: Config) -> Recipe:
    """Return the recipe of a method."""
    return ControlRecipe(config.settings) if method == "control" else build_recipe(config)


def words(options: argparse.Namespace, recipe: str, seed: int, folder: str) -> list[str]:
    """Return the command line of a run."""
    chosen = [f"recipe={recipe}", f"output_dir={folder}", f"seed={seed}", f"exp_name={recipe}"]
    chosen += [f"data.root={options.data}/train", f"data.val_root={options.data}/test"]
    chosen += [f"training.device={options.device}", "logging.use_tensorboard=false"]
    chosen += ["checkpoint.every_steps=1000000", "training.num_epochs=null"]
    if options.device == "cuda":
        chosen += ["training.cuda_graph=true"]
    return [*chosen, *(SMALL if options.small else ()), *options.set]


def rate(options: argparse.Namespace, method: str, world: World) -> float:
    """Return training steps per second, the loader included."""
    with tempfile.TemporaryDirectory() as folder:
        config = load([*words(options, RECIPES[method], 0, folder), "training.num_steps=1000000"])
        trainer = Trainer(config, build(method, config), world)
        for _ in range(WARM_UP):
            trainer.train_step()
        synchronize(world)
        began = time.perf_counter()
        for _ in range(TIMED):
            trainer.train_step()
        synchronize(world)
        seconds = time.perf_counter() - began
        trainer.close()
    return TIMED / seconds


def train(options: argparse.Namespace, method: str, seed: int, world: World) -> Row:
    """Train a method for the given time; return its scores and what they took."""
    recipe = RECIPES[method]
    steps = options.steps or max(1, round(rate(options, method, world) * 60 * options.minutes))
    with tempfile.TemporaryDirectory() as folder:
        often = f"training.evaluate_every_steps={max(1, -(-steps // options.evaluations))}"
        config = load([*words(options, recipe, seed, folder), f"training.num_steps={steps}", often])
        trainer = Trainer(config, build(method, config), world)
        clock = Clock(trainer, world)
        scores = trainer.train()
        tuned = fine_tune(options, seed, folder, config.run_dir / "checkpoints" / "latest", world)
        if options.pictures is not None:
            options.pictures.mkdir(parents=True, exist_ok=True)
            draw_neighbors(options.pictures / f"{method}.webp", trainer, world)
            draw_photographs(options.pictures / f"{method}_photographs.webp", trainer)
        per_epoch = trainer.loader.steps_per_epoch
    return (
        scores
        | tuned
        | {
            "method": f"{method}, {options.label}" if options.label else method,
            "seed": seed,
            "minutes": clock.seconds / 60,
            "epochs": steps / per_epoch,
            "images_per_second": clock.steps_per_second() * trainer.plan.global_batch_size,
            "curve": clock.curve,
        }
    )


def fine_tune(
    options: argparse.Namespace, seed: int, folder: str, checkpoint: Path | None, world: World
) -> dict[str, float]:
    """Return the accuracy after fine-tuning a checkpoint, or random weights, by fraction of labels.

    With fewer labels the batches are smaller, and there are as many of them.
    """
    accuracies = {}
    for fraction in options.fine_tune_labels if options.fine_tune else ():
        chosen = words(options, "finetune_cifar", seed, folder)
        chosen += [f"exp_name=finetune_{fraction}", f"data.label_fraction={fraction}"]
        if checkpoint is not None:
            chosen += [f"checkpoint.init_from={checkpoint}"]
        if options.small:
            chosen += [f"training.num_steps={options.fine_tune}"]
        else:
            chosen += [f"training.num_steps={round(options.fine_tune * TRAINING_IMAGES / 1024)}"]
            chosen += [f"training.batch_size={1024 if fraction == 1 else 256}"]
        config = load(chosen)
        scores = Trainer(config, build_recipe(config), world).train()
        name = TUNED if fraction == 1 else f"{TUNED}_{fraction:g}"
        accuracies[name] = scores["classifier_top1"]
    return accuracies


class Clock:
    """Measures training without its evaluations, and keeps the scores of each.

    The rate leaves out the first steps, in which loaders start and a graph is recorded.
    """

    def __init__(self, trainer: Trainer, world: World) -> None:
        self.began, self.seconds = time.perf_counter(), 0.0
        self.curve: list[dict[str, float]] = []
        self.steps, self.started = 0, 0.0  # seconds until the rate is measured
        evaluate, train_step = trainer.evaluate, trainer.train_step

        def counted() -> None:
            train_step()
            self.steps += 1
            if self.steps == WARM_UP:
                synchronize(world)
                self.started = self.seconds + time.perf_counter() - self.began

        def timed(sets: list[str] | None = None) -> dict[str, float]:
            synchronize(world)
            self.seconds += time.perf_counter() - self.began
            scores = evaluate(sets)
            kept = ("knn_top1", "linear_top1", "rankme", "alpha_req", "val_loss")
            self.curve.append(
                {"step": trainer.state.step} | {key: scores[key] for key in kept if key in scores}
            )
            self.began = time.perf_counter()
            return scores

        trainer.evaluate = timed  # type: ignore[method-assign]
        trainer.train_step = counted  # type: ignore[method-assign]

    def steps_per_second(self) -> float:
        """Return the rate after the first steps, or of all where there are few."""
        skipped = WARM_UP if self.steps > 2 * WARM_UP else 0
        return (self.steps - skipped) / (self.seconds - (self.started if skipped else 0.0))


def synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def score_untrained(options: argparse.Namespace, method: str, seed: int, world: World) -> Row:
    """Score raw pixels, or an encoder with its random weights."""
    config = load([*words(options, "ijepa_cifar", seed, "none"), "training.num_steps=1"])
    recipe = build_recipe(config)
    assert isinstance(recipe, EncoderRecipe)
    torch.manual_seed(seed)
    model = recipe.build_model().to(world.device).eval()
    assert isinstance(model, FeatureModel)
    if method == "pixels":
        model = RawPixels(model.context_encoder.vit, model.pixels, use_target_encoder=False)
    with torch.inference_mode():
        scores = evaluation.score_features(model, *recipe.scored_sets(), config.settings, world)
    if method != "pixels":
        with tempfile.TemporaryDirectory() as folder:
            scores |= fine_tune(options, seed, folder, None, world)
    return scores | {"method": method, "seed": seed, "minutes": 0.0, "epochs": 0.0}


def table(rows: Iterable[Row]) -> str:
    """Return the table, the mean of all seeds with their deviation."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    tuned = sorted(
        {key for row in itertools.chain(*by_method.values()) for key in row if TUNED in key}
    )
    columns = COLUMNS | {key: tuned_title(key) for key in tuned}
    lines = [
        f"| method | {' | '.join(columns.values())} | epochs | minutes | images/s |",
        f"| --- |{' --- |' * (len(columns) + 3)}",
    ]
    for method, runs in by_method.items():
        cells = []
        for key in columns:
            values = [100 * run[key] for run in runs if key in run]
            if not values:
                cells.append("")
                continue
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        for key, digits in (("epochs", 0), ("minutes", 1), ("images_per_second", 0)):
            values = [run[key] for run in runs if run.get(key)]
            cells.append(f"{statistics.mean(values):,.{digits}f}" if values else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tuned_title(key: str) -> str:
    """Return the heading of a column of fine-tuning."""
    fraction = key.removeprefix(TUNED).removeprefix("_")
    return f"fine-tuned, {100 * float(fraction):g} % labels" if fraction else "fine-tuned"


def correlations(rows: Iterable[Row]) -> str:
    """Return how scores without labels order the checkpoints of self-supervised runs.

    Spearman's rank correlation with k-NN over the evaluations of all runs; and in how many pairs of
    evaluations of one run, among which `checkpoints/best` is chosen, the order is that of k-NN.
    """
    curves = [
        row["curve"]
        for row in rows
        if row["method"].partition(",")[0] in RECIPES.keys() - {"supervised", "control"}
    ]
    lines = []
    for key in ("rankme", "alpha_req", "val_loss"):
        points = [point for curve in curves for point in curve if key in point]
        pairs = [
            (later[key] - earlier[key]) * (later["knn_top1"] - earlier["knn_top1"])
            for curve in curves
            for earlier, later in itertools.combinations(curve, 2)
            if key in later
        ]
        if len(points) > 2:
            ranks = [
                torch.tensor([point[name] for point in points]).argsort().argsort().double()
                for name in (key, "knn_top1")
            ]
            value = float(torch.corrcoef(torch.stack(ranks))[0, 1])
            alike = sum(product > 0 for product in pairs)
            lines.append(
                f"{key} and k-NN: {value:+.2f} over {len(points)} checkpoints; "
                f"within runs {alike} of {len(pairs)} pairs in the same order"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="training time of each method")
    parser.add_argument("--steps", type=positive, help="in place of the time")
    parser.add_argument("--methods", nargs="*", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", default="data/cifar10")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny encoder and few images")
    parser.add_argument("--no-untrained", action="store_true", help="leave these two rows out")
    parser.add_argument("--evaluations", type=int, default=1, help="of each run, for its curve")
    parser.add_argument("--fine-tune", type=int, metavar="EPOCHS", help="also fine-tune each row")
    parser.add_argument(
        "--fine-tune-labels", type=float, nargs="+", default=[1.0], metavar="FRACTION"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for all methods")
    parser.add_argument("--label", help="added to the method's name, for rows with --set")
    parser.add_argument("--rows", type=Path, help="append every row to this JSON-lines file")
    parser.add_argument("--pictures", type=Path, help="folder for neighbors and feature maps")
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="FILE", help="print the table of such files"
    )
    options = parser.parse_args()
    if options.show is not None:
        lines = [line for file in options.show for line in file.read_text().splitlines()]
        rows = [json.loads(line) for line in lines]
        print(f"{table(rows)}\n{correlations(rows)}")
        return 0
    world = init_distributed(options.device)
    rows, failed = [], []
    jobs = [(method, seed) for method in options.methods for seed in options.seeds]
    if not options.no_untrained:
        untrained = [("random weights", seed) for seed in options.seeds]
        jobs = [("pixels", options.seeds[0]), *untrained, *jobs]
    for method, seed in jobs:
        began = time.perf_counter()
        run = train if method in RECIPES else score_untrained
        try:
            rows.append(run(options, method, seed, world))
        except Preempted as asked:  # a signal is for the whole process
            print(f"stopped by a signal during {method}, seed {seed}", file=sys.stderr)
            return exit_code_of(asked)
        except Exception:  # one broken method leaves the others their turn
            traceback.print_exc()
            failed.append(method)
            continue
        shown = {key: round(rows[-1][key], 4) for key in COLUMNS}
        print(f"== {method} seed {seed}: {shown}, {time.perf_counter() - began:.0f} s", flush=True)
        if options.rows is not None:
            with options.rows.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    name = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    print(f"\n{name}, torch {torch.__version__}\n{table(rows)}\n{correlations(rows)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
