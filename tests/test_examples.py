"""The examples learn; the one with its own step does what it says, on any number of processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_runs import HERE, losses_by_step, read_rows, same_bits, weights

from overt.config import build_recipe, load
from overt.distributed import init_distributed

EXAMPLE = str(HERE.parent / "examples" / "own_recipe")
STEPS = 80
SHORT = [f"training.num_steps={STEPS}", "training.evaluate_every_steps=null"]
QUIET = ["training.device=cpu", "logging.use_tensorboard=false", "evaluation.samples=90"]


def train(folder: Path, recipe: str, *overrides: str) -> Path:
    """Train an example below `folder`; its run folder."""
    from overt.engine.trainer import Trainer

    words = [f"recipe={recipe}", f"output_dir={folder}", *QUIET, *overrides]
    config = load(words, packages=[EXAMPLE])
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    del trainer  # before the process group goes
    return config.run_dir


@pytest.mark.parametrize(
    "recipe",
    [
        "own_recipe",
        pytest.param("own_recipe_focal", marks=pytest.mark.long),
        pytest.param("own_recipe_sharpness", marks=pytest.mark.long),
    ],
)
def test_it_learns(recipe: str, tmp_path: Path) -> None:
    run = train(tmp_path, recipe, *SHORT, "logging.every_steps=10")
    losses = losses_by_step(run)
    assert losses[STEPS] < 0.7 * losses[10]
    score = [row["evaluation/accuracy"] for row in read_rows(run) if "evaluation/accuracy" in row]
    assert score[-1] > 0.7  # chance is one in three
    assert (run / "pictures" / f"guesses_{STEPS:08d}.png").is_file()


def few_steps(folder: Path, *overrides: str, recipe: str = "own_recipe_sharpness") -> Path:
    settings = ["training.num_steps=4", "training.global_batch_size=8", "logging.every_steps=1"]
    return train(folder, recipe, *settings, *overrides)


def curve(run: Path) -> list[float]:
    return list(losses_by_step(run).values())


def test_without_a_radius_the_custom_step_is_the_engines_own_step(tmp_path: Path) -> None:
    whole = "training.batch_size=8"
    own = few_steps(tmp_path, whole, "loss.radius=0.0")
    engine = few_steps(tmp_path, whole, recipe="own_recipe")
    assert curve(own) == curve(engine)
    assert same_bits(weights(own, 4), weights(engine, 4))
    uphill = few_steps(tmp_path / "uphill", whole)
    assert not same_bits(weights(uphill, 4), weights(engine, 4))


def test_the_custom_step_is_the_same_in_parts(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """One micro-batch, two, and two processes of two each."""
    whole = curve(few_steps(tmp_path / "1", "training.batch_size=8"))
    parts = curve(few_steps(tmp_path / "2", "training.batch_size=4"))
    runs = run_processes(few_steps, 2, tmp_path / "4", "training.batch_size=2")
    assert parts == pytest.approx(whole, rel=1e-4)
    assert curve(runs[0]) == pytest.approx(whole, rel=1e-4)


def test_a_sample_is_a_function_of_index_and_generator() -> None:
    recipe = build_recipe(load(["recipe=own_recipe"], packages=[EXAMPLE]))
    source = recipe.build_dataset()
    one, again, other = (source.sample(5, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one[0], again[0])
    assert one[1] == again[1] == other[1]
    assert not torch.equal(one[0], other[0])
    assert 0 <= one[0].min() < one[0].max() <= 1
