"""Any split of one global batch gives one loss curve; any number of processes one score."""

from collections.abc import Callable
from pathlib import Path

import pytest
from toy_runs import losses_by_step, read_rows, same_bits, train_toy, weights

GLOBAL_FOUR = ["training.global_batch_size=4", "training.batch_size=1", "training.num_steps=8"]


def curve(run: Path) -> list[float]:
    return [loss for _, loss in sorted(losses_by_step(run).items())]


def test_1x4_2x2_4x1_give_the_same_curve_over_epoch_ends(
    run_processes: Callable[..., list[None]], tmp_path: Path
) -> None:
    """10 samples in groups of 4: each epoch ends in a group of 2, which leaves processes idle."""
    for size in (1, 2, 4):
        run_processes(train_toy, size, tmp_path / str(size), *GLOBAL_FOUR)
    one = curve(tmp_path / "1" / "toy")
    assert len(one) == 8
    assert curve(tmp_path / "2" / "toy") == pytest.approx(one, rel=1e-6)
    assert curve(tmp_path / "4" / "toy") == pytest.approx(one, rel=1e-6)
    # Masks differ between samples: a mean of means would be off by percents.
    train_toy(tmp_path / "whole", "training.batch_size=4", "training.num_steps=8")
    assert curve(tmp_path / "whole" / "toy") == pytest.approx(one, rel=1e-6)


def test_workers_do_not_change_a_bit(tmp_path: Path) -> None:
    train_toy(tmp_path / "none", "training.num_workers=0")
    train_toy(tmp_path / "two", "training.num_workers=2")
    assert same_bits(weights(tmp_path / "none/toy", 12), weights(tmp_path / "two/toy", 12))


def test_all_processes_end_with_the_same_weights_and_one_writes(
    run_processes: Callable[..., list[None]], tmp_path: Path
) -> None:
    digests = run_processes(final_digest, 2, tmp_path)
    assert digests[0] == digests[1]
    steps = [row["step"] for row in read_rows(tmp_path / "toy") if "train/loss" in row]
    assert steps == sorted(set(steps))


def final_digest(folder: Path) -> list[float]:
    from toy_runs import toy_config

    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    digest = [value.double().sum().item() for value in trainer.model.state_dict().values()]
    del trainer
    return digest


def score_of(folder: Path) -> dict[str, float]:
    from toy_runs import toy_config

    from overt.config import build_recipe
    from overt.distributed import init_distributed, seed_everything

    recipe = build_recipe(toy_config(folder))
    world = init_distributed("cpu")
    seed_everything(0)
    return recipe.evaluate(recipe.build_model().eval(), world)


def test_evaluation_gives_the_same_number_on_1_2_and_3_processes(
    run_processes: Callable[..., list[dict[str, float]]], tmp_path: Path
) -> None:
    scores = [score for size in (1, 2, 3) for score in run_processes(score_of, size, tmp_path)]
    assert all(score == scores[0] for score in scores)  # to the last bit, on every process
