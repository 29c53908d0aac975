"""Train PCDiff on synthetic skulls for some seconds, then complete unseen and real ones.

    python benchmarks/skulls.py --seconds 870 --workers 14 --real data/cranium    on CUDA
    python benchmarks/skulls.py pcdiff_tiny --seconds 20 --skulls 6 --cases 2     anywhere, to try

Skulls are made while kernels are compiled. The number of steps follows from the time of the first
ones, so that the rate reaches its end in time. Every case is scored beside a ceiling (its true
points as a solid) and a control (noise). Sampled points go to --output, a row a case to its stdout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import guarded

from overt.config import Config, build_recipe, load
from overt.data.skulls.volumes import Spacing
from overt.distributed import init_distributed
from overt.engine.precision import AUTOCAST
from overt.engine.trainer import Trainer
from overt.evaluation import Row
from overt.recipes.pcdiff.config import EvaluationSettings
from overt.recipes.pcdiff.data import HeldOutCases
from overt.recipes.pcdiff.evaluation import complete_skulls, score_case
from overt.recipes.pcdiff.recipe import PCDiffRecipe

START = time.time()
PROBE_STEPS = 60
# sampler, steps, and whether a close-up is sampled after the whole skull
SAMPLERS = (
    ("ddim", 50, True), ("ddim", 50, False), ("sa_solver", 20, True), ("dpm_solver", 20, True),
)  # fmt: skip


def say(text: str) -> None:
    print(f"[{time.time() - START:6.1f} s] {text}", flush=True)


def main() -> int:
    options = make_parser().parse_intermixed_args()
    root = options.output / "data"
    words = [
        f"recipe={options.recipe}", f"data.root={root}", f"output_dir={options.output / 'runs'}",
        "logging.use_tensorboard=false", "training.evaluate_every_steps=null",
        "training.evaluate_at_start=false", "checkpoint.every_steps=1000",
        f"data.synthetic.count={options.skulls}", *options.overrides,
    ]  # fmt: skip
    config = load(words)
    waiting = start_data(options, config)
    if torch.cuda.is_available():
        try:
            compile_kernels(config)
        except RuntimeError as error:  # only time is lost: training compiles them too
            say(f"kernels are compiled later ({error})")
        say("kernels compiled")
    for process in waiting:
        if process.wait():
            return 1
    say(f"{options.skulls} synthetic skulls made")
    trainer = train(words, options.seconds)
    averaged = trainer.average
    model = trainer.model if averaged is None else averaged
    say(f"trained for {trainer.state.step} steps; peak {peak_gib():.1f} GiB")
    roots = [options.real] if options.real else []
    tables = {}
    for folder in [*roots, root]:
        for sampler, steps, near in SAMPLERS:
            close_up = near and config.settings.data.close_ups is not None
            extra = [
                f"data.root={folder}", "data.synthetic=null", f"evaluation.sampler={sampler}",
                f"evaluation.steps={steps}", f"evaluation.close_up={str(close_up).lower()}",
                "evaluation.eta=1", "evaluation.step_power=2", "evaluation.volumes=true",
                f"evaluation.ensemble={options.samples}", f"evaluation.cases={options.cases}",
            ]  # fmt: skip
            name = f"{folder.name}_{sampler}{steps}{'_close_up' if close_up else ''}"
            if name in tables:
                continue
            recipe = build_recipe(load([*words, *extra]))
            tables[name] = complete(recipe, model, trainer, options, name)
    (options.output / "scores.json").write_text(json.dumps(tables, indent=1))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="pcdiff_medium")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seconds", type=float, default=100.0, help="of training")
    parser.add_argument("--skulls", type=int, default=500, help="a fifth of them is held out")
    parser.add_argument("--cases", type=int, default=10, help="completed of each kind of skull")
    parser.add_argument("--samples", type=int, default=5, help="implants of a case, that vote")
    parser.add_argument("--workers", type=int, default=0, help="processes that make and score")
    parser.add_argument("--real", type=Path, help="a folder in SkullBreak's layout, with test.csv")
    parser.add_argument("--output", type=Path, default=Path("runs/skulls"))
    return parser


def start_data(options: argparse.Namespace, config: Config) -> list[subprocess.Popen[bytes]]:
    """Make skulls, and the clouds of real ones, in separate processes."""
    synthetic = config.settings.data.synthetic
    overt = [sys.executable, "-m", "overt", "data"]
    sizes = [f"--{key}={getattr(synthetic, key)}" for key in ("side", "points", "seed")]
    sizes.append(f"--kind={synthetic.kind or 'shells'}")
    words = [f"--skulls={options.skulls}", f"--workers={options.workers}", *sizes]
    commands = [[*overt, "skulls", str(options.output / "data"), *words]]
    if options.real:
        points = f"--points={synthetic.points}"
        commands.append([*overt, "prepare", str(options.real), points, "--workers=2"])
    return [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]


def compile_kernels(config: Config) -> None:
    """Run a step and its backward pass on examples: compiled kernels are kept on disk."""
    world = init_distributed(config.training.device)
    recipe = build_recipe(config)
    model = recipe.build_model().to(world.device)
    batch = recipe.example_batch(config.training.global_batch_size or 8)
    moved = type(batch)(
        *(v.to(world.device) if torch.is_tensor(v) else v for v in vars(batch).values())
    )
    count = torch.tensor(float(len(moved.known)), device=world.device)
    dtype = AUTOCAST.get(config.training.precision)
    with torch.autocast(world.device.type, dtype, enabled=dtype is not None):
        for _ in range(2):
            output = recipe.loss(model, moved, {"samples": count}, 0)
            torch.stack(list(output.losses.values())).sum().backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()


def train(words: list[str], seconds: float) -> Trainer:
    """Train for about so long; the first steps of another run say how many steps that is."""

    def trainer(*extra: str) -> Trainer:
        config = load([*words, "evaluation.volumes=false", "evaluation.cases=1", *extra])
        return Trainer(config, build_recipe(config), init_distributed(config.training.device))

    quick = ("evaluation.steps=2", "evaluation.loss_times=0")
    probe = trainer("exp_name=probe", f"training.num_steps={PROBE_STEPS}", *quick)
    times = []
    while not probe.is_done():
        probe.train_step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.time())
    pace = float(np.median(np.diff(times[PROBE_STEPS // 3 :])))
    steps = max(int(seconds / pace), PROBE_STEPS)
    say(f"{1000 * pace:.1f} ms a step: {steps} steps")
    probe.close()
    # All steps of sampling, since `overt complete` takes the settings of the checkpoint.
    run = trainer("exp_name=skulls", f"training.num_steps={steps}")
    run.train()
    return run


def complete(
    recipe: Any, model: torch.nn.Module, trainer: Trainer, options: argparse.Namespace, name: str
) -> list[dict[str, Any]]:
    """Sample implants for held-out cases, score them, and keep their points."""
    assert isinstance(recipe, PCDiffRecipe)
    settings = recipe.settings
    cases = HeldOutCases(settings.data, settings.evaluation)
    batch = [cases.case(index) for index in range(len(cases))]
    size = settings.evaluation.batch_size
    start = time.time()
    model.eval()
    with torch.inference_mode(), trainer.autocast():
        parts = [
            complete_skulls(model, batch[first : first + size], settings)  # type: ignore[arg-type]
            for first in range(0, len(batch), size)
        ]
    implants = torch.cat(parts)  # (cases, samples, K, 3)
    say(f"{name}: {len(batch)} cases x {options.samples} sampled in {time.time() - start:.1f} s")
    np.savez_compressed(
        options.output / f"{name}.npz",
        implants=implants.numpy().astype(np.float16),
        names=np.array([case.item.name for case in batch]),
        shifts=np.stack([case.cloud.shift for case in batch]),
        scales=np.stack([case.cloud.scale for case in batch]),
    )
    shared = settings.model.diffusion.shared_noise
    noise = [cases.noise(index, shared) for index in range(len(batch))]
    assert isinstance(trainer.recipe, PCDiffRecipe)  # `recipe` may be that of other skulls
    made_in = trainer.recipe.cloud_spacing
    score = partial(score_one, settings.evaluation, settings.data.dataset, made_in)
    work = list(zip(batch, implants, noise, strict=True))
    if options.workers:
        with ProcessPoolExecutor(options.workers, get_context("forkserver")) as pool:
            rows = list(pool.map(score, work))
    else:
        rows = [score(item) for item in work]
    table = [{"name": case.item.name, **row} for case, row in zip(batch, rows, strict=True)]
    for row in table:
        print("  ", {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    means = {key: float(np.nanmean([row[key] for row in rows])) for key in rows[0]}
    say(f"{name} means: { {key: round(value, 3) for key, value in means.items()} }")
    return table


def score_one(
    settings: EvaluationSettings, dataset: str, made_in: Spacing | None, work: tuple[Any, Any, Any]
) -> Row:
    torch.set_num_threads(1)
    return score_case(*work, settings, dataset, made_in)


def peak_gib() -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
