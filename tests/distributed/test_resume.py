"""A run that was killed and resumed ends bit for bit like one that was not."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from queue_recipe import MoCo
from toy_runs import (
    cut_back,
    losses_by_step,
    make_trainer,
    read_rows,
    same_bits,
    train_toy,
    weights,
)

# Dropout draws from the global generator, the average has its own weights, 5 steps make an epoch.
EVERYTHING = ["model.dropout=0.3", "training.ema_momentum=0.9", "checkpoint.every_steps=1"]
RUNS = Callable[..., list[None]]


def assert_same_end(one: Path, other: Path) -> None:
    for part in ("model", "optimizer", "ema", "rng"):
        assert same_bits(weights(one, 12, part), weights(other, 12, part)), part
    assert losses_by_step(one) == losses_by_step(other)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def whole_run(undisturbed: Path, run_processes: RUNS) -> Callable[[int], Path]:
    """The uninterrupted run of so many processes, trained when first asked for."""

    def run(size: int) -> Path:
        folder = undisturbed / str(size)
        if not folder.exists():
            run_processes(train_toy, size, folder, *EVERYTHING)
        return folder / "toy"

    return run


@pytest.mark.parametrize(
    ("size", "die_at"),
    [
        pytest.param(
            size,
            die_at,
            id=f"{moment}-{size}",
            marks=[pytest.mark.long] * (moment == "middle" or (size == 2 and moment != "last")),
        )
        for die_at, moment in ((1, "early"), (5, "first"), (7, "middle"), (9, "last"))
        for size in (1, 2)
    ],
)
def test_killed_and_resumed(
    size: int, die_at: int, whole_run: Callable[[int], Path], run_processes: RUNS, tmp_path: Path
) -> None:
    whole = whole_run(size)
    codes = run_processes(train_toy, size, tmp_path, *EVERYTHING, dies=True, die_at=die_at)
    assert -9 in codes
    run_processes(train_toy, size, tmp_path, *EVERYTHING)
    assert_same_end(tmp_path / "toy", whole)


def test_three_processes_add_up_in_the_same_order_after_a_resume(
    run_processes: RUNS, tmp_path: Path
) -> None:
    """With two the order does not matter. DDP packs its messages anew after its first pass."""
    settings = [*EVERYTHING, "model.width=16", "seed=1"]
    run_processes(train_toy, 3, tmp_path / "whole", *settings)
    run_processes(train_toy, 3, tmp_path / "killed", *settings, dies=True, die_at=2)
    run_processes(train_toy, 3, tmp_path / "killed", *settings)
    assert_same_end(tmp_path / "killed" / "toy", tmp_path / "whole" / "toy")


def train_moco(folder: Path, *overrides: str) -> list[list[float]]:
    """Train a recipe that hands tensors from `loss` to `after_step`; its queue in the end."""
    kept = ["checkpoint.keep_last_n=20", "checkpoint.metric_name=null"]
    trainer = make_trainer(folder, *EVERYTHING, *kept, *overrides, recipe=MoCo)
    trainer.train()
    queue: list[list[float]] = trainer.recipe.queue.tolist()
    del trainer  # before the process group goes
    return queue


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_tensors_that_loss_hands_on_resume_bit_for_bit(
    size: int, run_processes: RUNS, tmp_path: Path
) -> None:
    """On three processes the engine runs `loss` again before it resumes, for DDP's buckets."""
    settings = ["model.width=16", "training.batch_size=1", "training.accumulation_steps=2"]
    queues = run_processes(train_moco, size, tmp_path / "whole", *settings)
    assert all(queue == queues[0] for queue in queues)
    cut_back(tmp_path / "whole/toy", tmp_path / "cut/toy", 5)
    resumed = run_processes(train_moco, size, tmp_path / "cut", *settings)
    assert resumed == queues
    assert_same_end(tmp_path / "cut/toy", tmp_path / "whole/toy")


def test_a_loss_that_is_run_again_for_its_numbers_changes_nothing(tmp_path: Path) -> None:
    """FLOPs are counted, and the module that made NaN is searched for, by running `loss` again."""
    again = ["logging.model_flops=true", "training.name_nonfinite_module=true"]
    skips = ["data.nan_sample=3", "training.nonfinite=skip"]
    assert train_moco(tmp_path / "plain") == train_moco(tmp_path / "again", *again)
    assert_same_end(tmp_path / "again/toy", tmp_path / "plain/toy")
    plain, searched = (tmp_path / name / "toy" for name in ("plain_nan", "again_nan"))
    train_moco(plain.parent, *skips)
    train_moco(searched.parent, *skips, *again)
    assert_same_end(searched, plain)


@pytest.mark.parametrize("size", [1, 2])
def test_killed_and_resumed_with_two_workers(
    size: int, whole_run: Callable[[int], Path], run_processes: RUNS, tmp_path: Path
) -> None:
    die_at = random.Random(size).randrange(1, 12)
    settings = [*EVERYTHING, "training.num_workers=2"]
    run_processes(train_toy, size, tmp_path, *settings, dies=True, die_at=die_at)
    run_processes(train_toy, size, tmp_path, *settings)
    assert_same_end(tmp_path / "toy", whole_run(size))


@pytest.mark.parametrize("step", [0, 1, 4, 5, 6, 11])
def test_from_every_kind_of_step(
    step: int, whole_run: Callable[[int], Path], tmp_path: Path
) -> None:
    """Saved before, at and after the end of an epoch, and one step before the end of the run."""
    whole = whole_run(1)
    settings = [*EVERYTHING, "checkpoint.keep_last_n=20"]
    train_toy(tmp_path / "kept", *settings)
    folder = tmp_path / "cut" / "toy"
    cut_back(tmp_path / "kept" / "toy", folder, step)
    train_toy(tmp_path / "cut", *settings)
    assert_same_end(folder, whole)


def test_two_processes_go_on_with_the_samples_of_one(run_processes: RUNS, tmp_path: Path) -> None:
    settings = ["training.global_batch_size=4", "training.batch_size=null"]
    train_toy(tmp_path / "whole", *settings)
    run_processes(train_toy, 1, tmp_path, *settings, dies=True, die_at=6)
    run_processes(train_toy, 2, tmp_path, *settings)
    whole, resumed = (losses_by_step(path / "toy") for path in (tmp_path / "whole", tmp_path))
    assert resumed == pytest.approx(whole, rel=1e-6)
    norms = [
        {
            row["step"]: row["train/input_norm"]
            for row in read_rows(path / "toy")
            if "train/loss" in row
        }
        for path in (tmp_path / "whole", tmp_path)
    ]
    # The data itself, untouched by rounding of the weights: the same samples, the same draws.
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_a_finished_run_has_nothing_to_do(tmp_path: Path) -> None:
    train_toy(tmp_path)
    before = (tmp_path / "toy" / "checkpoints" / "latest").resolve()
    train_toy(tmp_path)
    assert (tmp_path / "toy" / "checkpoints" / "latest").resolve() == before
