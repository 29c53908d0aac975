"""The collapse monitor: an alarm where features become alike, none where they do not."""

import logging
from pathlib import Path

import pytest
import torch
from small_recipes import HJEPA_SPLIT, SMALL_HJEPA, first_batch
from toy_runs import read_rows, weights

from overt.recipes.hjepa.collapse import CollapseError, CollapseMonitor


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


# Without target encoder and without a term against it, equal features are the best solution.
COLLAPSING = [
    "model.use_target_encoder=false",
    "loss.detach_targets=false",
    "model.normalize_targets=false",
    "model.initialization=normal",
    "optimizer.lr=0.005",
    "training.num_steps=60",
    "training.evaluate_every_steps=null",
    "evaluation.collapse.every_steps=10",
    "data.held_out=0.0",
]


def test_a_collapsing_run_warns_and_then_stops(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = SMALL_HJEPA.trainer(
        root, *COLLAPSING, "exp_name=collapses", "evaluation.collapse.stop_after=2"
    )
    with caplog.at_level(logging.WARNING), pytest.raises(CollapseError, match="2 times in a row"):
        trainer.train()
    assert "evaluation.collapse.min_std=0.1" in caplog.text
    rows = read_rows(root / "runs" / "collapses")
    # The loss is at its best; the scale-free rank sees nothing: it is the deviation that tells.
    first, last = rows[0], rows[-1]
    assert last["train/loss"] < 0.3 * first["train/loss"]
    assert last["train/target_token_std"] < 0.3 * first["train/target_token_std"]
    assert last["train/target_token_rank"] > 0.7 * first["train/target_token_rank"]


def test_a_run_that_learns_raises_no_alarm(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="overt"):
        SMALL_HJEPA.train(root, *HJEPA_SPLIT, "exp_name=healthy", "training.num_steps=40",
              "evaluation.collapse.every_steps=10")  # fmt: skip
    assert "collapse" not in caplog.text


def test_a_resumed_run_goes_on_counting_and_shows_the_same_numbers(root: Path) -> None:
    """Looks at steps 0, 4, 8, ...; the run is cut at 6, between two of them."""
    settings = [
        "training.num_steps=10", "training.evaluate_every_steps=null", "checkpoint.every_steps=6",
        "evaluation.collapse.every_steps=4", "evaluation.collapse.min_rank=1.0",
    ]  # fmt: skip
    SMALL_HJEPA.train(root, *settings, "exp_name=straight")
    trainer = SMALL_HJEPA.trainer(root, *settings, "exp_name=stopped")
    trainer.total_steps = 6
    trainer.train()
    SMALL_HJEPA.train(root, *settings, "exp_name=stopped")
    runs = root / "runs"
    assert int(weights(runs / "stopped", 6)["monitor.alarms"]) == 2
    assert int(weights(runs / "stopped", 10)["monitor.alarms"]) == 3
    seen = [
        {
            row["step"]: row["train/target_token_std"]
            for row in read_rows(runs / name)
            if "train/loss" in row
        }
        for name in ("straight", "stopped")
    ]
    assert seen[0] == seen[1]
    assert len(set(seen[0].values())) == 3


def test_a_step_of_many_micro_batches_is_one_look(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, "evaluation.collapse.min_std=100.0")
    model, batch = recipe.build_model(), first_batch(recipe)
    counts = recipe.counts(batch) | {"samples": torch.tensor(12.0)}
    recipe.begin(10, 10)
    assert isinstance(model.monitor, CollapseMonitor)
    alarms = []
    for step in range(3):  # the second one is not due
        outputs = [recipe.loss(model, batch, counts, step) for _ in range(3)]
        alarms.append(int(model.monitor.alarms))  # what `loss` looks at it does not remember
        looks = [output.carry["look"] for output in outputs if output.carry]
        carry = {"look": torch.cat(looks)} if looks else {}
        recipe.after_step(model, step, torch.tensor(1.0), carry)
        shown = sum(output.metrics["context_token_norm"] for output in outputs)
        torch.testing.assert_close(shown, model.monitor.numbers[0, 2])
    assert [*alarms, int(model.monitor.alarms)] == [0, 1, 1, 2]


def test_another_run_s_alarms_are_not_taken_over(root: Path) -> None:
    trainer = SMALL_HJEPA.trainer(root, *HJEPA_SPLIT, "exp_name=fresh")
    trainer.close()
    tensors = trainer.model.state_dict() | {"monitor.alarms": torch.tensor(7)}
    assert trainer.model.adapt_tensors(tensors)["monitor.alarms"] == 0
