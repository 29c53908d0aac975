"""Train both stages of BLADE on dressed people for some seconds each, and score unseen people.

    python benchmarks/people.py --seconds 900 1500                             the people of anny
    python benchmarks/people.py --seconds 100 250 --body my_anny.npz           another file of it
    python benchmarks/people.py --tiny --seconds 20 20 --control 10            on a CPU, to try

The networks and their settings are those of examples/blade/stages_people.yaml. The number of steps
follows from the measured rate, so that the learning rate reaches its end in time; the last
checkpoint is scored on people of another seed, and by the largest ratio of pelvis to joint depth:
where that is near 1, a picture says little about the distance. Beside it: the constant depth that
is best on training people, PoseNet before its first step (the mean pose), and a DepthNet trained
and scored on orthographic images of the same people, which carry no information about depth.
Training people are rendered during training; data.synthetic.live=false writes them to files first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import guarded
from omegaconf import OmegaConf

from overt.config import Config, build_recipe, load
from overt.data.people.human_data import HumanData
from overt.data.rng import sample_rng
from overt.distributed import World, init_distributed
from overt.engine.trainer import Trainer
from overt.recipes.blade.people import pelvis_depths

STAGES = Path(__file__).parents[1] / "examples" / "blade" / "stages_people.yaml"
TINY = (
    "data.synthetic.train=64", "data.synthetic.test=16", "data.synthetic.size=64",
    "data.depth_size=64", "data.pose_size=64", "data.pose_step_sizes=[64]",
    "evaluation.camera.size=64", "training.batch_size=4", "training.num_workers=0",
    "training.precision=fp32", "data.synthetic.device=cpu", "data.synthetic.workers=0",
    "model.depth.channels=32", "model.depth.head.hidden=64",
)  # fmt: skip
TINY_POSE = ("model.branch.width=8", "model.branch.blocks=[1,1,1,1]")
WARM_UP, TIMED, RENDERED = 40, 60, 5
SAMPLED, TOGETHER = 1000, 50  # live people whose depths the constant is chosen for
SHOWN = ("relative_Tz", "mpjpe_mm", "pa_mpjpe_mm", "pve_mm")
# Limits of the distortion: 1.8 and 3 are those of the protocols P3 and P5.
DISTORTIONS = (1.0, 1.2, 1.8, 3.0, math.inf)
START = time.time()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs=2, default=[900, 1500], help="of each stage")
    parser.add_argument("--control", type=float, default=0.0, help="seconds; 0: no control")
    parser.add_argument("--body", default="anny", help="anny, or a file of `overt data anny-body`")
    parser.add_argument("--output", type=Path, default=Path("runs/blade_people"))
    parser.add_argument("--tiny", action="store_true", help="few people and small networks")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all stages")
    options = parser.parse_intermixed_args()
    rows: dict[str, dict[str, float]] = {}
    rows["depth"] = run(options, "depth", options.seconds[0])
    depthnet = options.output / "depth" / "checkpoints" / "latest"
    rows["pose"] = run(options, "pose", options.seconds[1], f"model.depthnet_checkpoint={depthnet}")
    if options.control:
        rows["control"] = run(options, "depth", options.control, name="orthographic")
    (options.output / "scores.json").write_text(json.dumps(rows, indent=1))
    return 0


def say(text: str) -> None:
    print(f"[{time.time() - START:6.1f} s] {text}", flush=True)


def words(options: argparse.Namespace, stage: str, name: str) -> list[str]:
    """Return the command line of a stage."""
    plan: Any = OmegaConf.to_container(OmegaConf.load(STAGES))
    chosen = next(entry for entry in plan["stages"] if entry["name"] == stage)
    settings: dict[str, Any] = plan["overrides"] | chosen["overrides"]
    settings |= {"data.synthetic.body": options.body, "model.body.model": options.body}
    settings["data.root"] = options.output / ("parallel" if name == "orthographic" else "people")
    settings["data.synthetic.orthographic"] = name == "orthographic"
    told = [f"recipe={chosen['recipe']}", f"output_dir={options.output}", f"exp_name={name}"]
    told += [f"{key}={str(value).replace(' ', '')}" for key, value in settings.items()]
    told += ["logging.use_tensorboard=false", "checkpoint.every_steps=1000000"]
    told += ["training.evaluate_every_steps=null", "evaluation.max_samples=null"]
    if options.tiny:
        told += [*TINY, *(TINY_POSE if stage == "pose" else ())]
    return [*told, *options.overrides]


def run(
    options: argparse.Namespace, stage: str, seconds: float, *extra: str, name: str | None = None
) -> dict[str, float]:
    """Train a stage for that long; return the scores of its last checkpoint."""
    given = [*words(options, stage, name or stage), *extra]
    steps = measured_steps(given, seconds)
    config = load([*given, f"training.num_steps={steps}"])
    trainer = make_trainer(config)
    rows = remembered_rows(trainer.recipe)
    initial = trainer.evaluate()
    say(f"{name or stage}: before training {shown(initial)}")
    began = time.perf_counter()
    scores = trainer.train()
    spent = time.perf_counter() - began
    samples = steps * trainer.plan.global_batch_size
    say(f"{name or stage}: {steps} steps, {samples:,} crops, {spent:.0f} s: {shown(scores)}")
    say(f"{name or stage}: by distortion {by_distortion(config, rows)}")
    if stage == "depth":
        constant = constant_error(config)
        say(f"{name or stage}: the best constant depth has relative_Tz {constant:.3f}")
        scores = scores | {"constant": constant}
    return scores | {"steps": steps, "seconds": spent}


def shown(scores: dict[str, float]) -> str:
    return ", ".join(f"{key} {scores[key]:.3f}" for key in SHOWN if key in scores)


def remembered_rows(recipe: Any) -> list[dict[str, Any]]:
    """Return a list that holds the rows of the latest evaluation."""
    rows: list[dict[str, Any]] = []
    kind = type(recipe)
    evaluate = kind.evaluate_rows

    def kept(recipe: Any, model: Any, world: World) -> list[dict[str, Any]]:
        rows[:] = evaluate(recipe, model, world)
        return rows

    kind.evaluate_rows = kept  # not of the recipe: loader processes receive a copy of that
    return rows


def by_distortion(config: Config, rows: list[dict[str, Any]]) -> str:
    """Return the scores of people between two limits of the distortion."""
    people = HumanData.load(annotation_file(config, "people_test"))
    distortion = np.ravel(people.columns["distortion_max"])[: len(rows)]
    parts = []
    for low, high in itertools.pairwise(DISTORTIONS):
        inside = [row for row, value in zip(rows, distortion, strict=True) if low <= value < high]
        if inside:
            means = {key: float(np.mean([row[key] for row in inside])) for key in shared(inside)}
            parts.append(f"{low:g} to {high:g} ({len(inside)} people): {shown(means)}")
    return "; ".join(parts)


def shared(rows: list[dict[str, Any]]) -> list[str]:
    return [key for key in SHOWN if all(key in row for row in rows)]


def annotation_file(config: Config, name: str) -> Path:
    return Path(config.settings.data.root) / "preprocessed_datasets" / f"{name}.npz"


def make_trainer(config: Config) -> Trainer:
    return Trainer(config, build_recipe(config), init_distributed(config.training.device))


def measured_steps(given: list[str], seconds: float) -> int:
    """Return the number of steps that take that long, by the pace of the first ones."""
    trainer = make_trainer(load([*given, "exp_name=probe", "training.num_steps=1000000"]))
    say("data are there")
    for _ in range(WARM_UP):
        trainer.train_step()
    synchronize()
    began = time.perf_counter()
    for _ in range(TIMED):
        trainer.train_step()
    synchronize()
    pace = (time.perf_counter() - began) / TIMED
    rendering = rendering_time(trainer) if trainer.config.settings.data.is_live else None
    trainer.close()
    part = "" if rendering is None else f"; rendering alone takes {1000 * rendering:.1f} ms"
    say(f"{1000 * pace:.1f} ms a step{part}")
    return max(int(seconds / pace), 1)


def rendering_time(trainer: Trainer) -> float:
    """Return the seconds that the device needs to render one batch of sampled people."""
    people = trainer.recipe.build_dataset()
    count = trainer.plan.global_batch_size
    drawn = [people.sample(index, sample_rng(0, 0, index)) for index in range(count)]
    batch = trainer.recipe.collate(drawn)
    trainer.to_device(batch)
    synchronize()
    began = time.perf_counter()
    for _ in range(RENDERED):
        trainer.to_device(batch)
    synchronize()
    return (time.perf_counter() - began) / RENDERED


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def depths(config: Config, name: str) -> np.ndarray:
    """Return the pelvis depths of a written set."""
    data = HumanData.load(annotation_file(config, name))
    return np.asarray(pelvis_depths(data, config.settings.model.body))


def sampled_depths(config: Config) -> np.ndarray:
    """Return the depths of live people as they are trained on: those too near have moved back."""
    recipe: Any = build_recipe(config)
    people, studio = recipe.build_dataset(), recipe.live.studio(torch.device("cpu"))
    parts = []
    for first in range(0, SAMPLED, TOGETHER):
        indices = range(first, first + TOGETHER)
        drawn = [people.sample(index, sample_rng(config.seed, 0, index)) for index in indices]
        with torch.no_grad():
            scene = studio.scene(recipe.collate(drawn).people)
        parts.append(scene.joints[:, 0, 2])
    return torch.cat(parts).numpy()


def constant_error(config: Config) -> float:
    """Return the relative error on unseen people of the constant best on the training people."""
    known = (
        sampled_depths(config) if config.settings.data.is_live else depths(config, "people_train")
    )
    unseen = depths(config, "people_test")
    guesses = np.linspace(known.min(), known.max(), 1000)
    best = guesses[np.argmin([np.mean(np.abs(guess - known) / known) for guess in guesses])]
    return float(np.mean(np.abs(best - unseen) / unseen))


if __name__ == "__main__":
    raise SystemExit(guarded(main))
