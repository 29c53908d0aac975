"""overt/engine/scoring.py: an evaluation leaves no trace in training."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_recipe.recipe import Toy
from toy_runs import make_trainer, read_rows, toy_config

from overt.distributed import World
from overt.engine.scoring import OWN, Cadence, score, score_sets
from overt.errors import ConfigError

MAIN = World(0, 1, 0, torch.device("cpu"))
OTHER = World(1, 2, 1, torch.device("cpu"))


class Careless(Toy):
    """Draws random numbers, and keeps what it finds."""

    fails = False

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        self.found = {
            "training": model.training,
            "inference": torch.is_inference_mode_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "world": world,
        }
        torch.rand(3), np.random.rand(3), random.random()
        if self.fails:
            raise RuntimeError("no such file")
        return {"error": 0.5}

    def visualize(self, model: nn.Module) -> dict[str, Tensor]:
        torch.rand(3)
        return {"points": torch.zeros(3, 2, 2, dtype=torch.uint8)}


@pytest.fixture
def recipe(tmp_path: Path) -> Careless:
    return Careless(toy_config(tmp_path).settings)


def generators() -> tuple[Any, ...]:
    state = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    return (*state, random.getstate())


def test_the_model_is_scored_in_evaluation_mode_without_gradients(recipe: Careless) -> None:
    model, pictures = nn.Linear(2, 2).train(), []
    before = generators()
    autocast = torch.autocast("cpu", torch.bfloat16)
    scores = score(recipe, nullcontext(model), MAIN, autocast, lambda *each: pictures.append(each))
    assert scores == {"error": 0.5}
    assert recipe.found == {"training": False, "inference": True, "autocast": True, "world": MAIN}
    assert model.training
    assert generators() == before
    assert not torch.is_autocast_enabled("cpu")
    ((name, picture),) = pictures
    assert (name, picture.shape) == ("points", (3, 2, 2))


def test_a_model_that_was_not_training_stays_so(recipe: Careless) -> None:
    model = nn.Linear(2, 2).eval()
    score(recipe, nullcontext(model), MAIN, nullcontext(), lambda *_: None)
    assert not model.training


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "Careless.evaluate returned NoneType, expected a dict of scores by name"),
        ({"error": None}, "Careless.evaluate returned 'error': None; expected a name and a number"),
        ({"error": torch.ones(3)}, r"returned 'error': a Tensor of \(3,\); expected a name"),
        ({3: 0.5}, "returned 3: 0.5; expected a name and a number"),
    ],
)
def test_scores_that_are_no_numbers_by_name_are_refused(
    recipe: Careless, monkeypatch: pytest.MonkeyPatch, scores: Any, message: str
) -> None:
    monkeypatch.setattr(Careless, "evaluate", lambda *_: scores)
    with pytest.raises(ConfigError, match=message):
        score_sets(recipe, nn.Linear(1, 1), MAIN)
    monkeypatch.setattr(Careless, "evaluate", lambda *_: {})
    monkeypatch.setattr(Careless, "evaluation_sets", lambda _: {"night": lambda *_: scores})
    with pytest.raises(ConfigError, match="the evaluation set night of Careless returned"):
        score_sets(recipe, nn.Linear(1, 1), MAIN)


def test_scores_become_numbers_of_python(recipe: Careless, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"a": torch.tensor(0.5), "b": np.float32(0.25), "c": torch.tensor([3]), "d": 1}
    monkeypatch.setattr(Careless, "evaluate", lambda *_: given)
    scores = score_sets(recipe, nn.Linear(1, 1), MAIN)
    assert scores == {"a": 0.5, "b": 0.25, "c": 3, "d": 1}
    assert {type(value) for value in scores.values()} == {float, int}


def test_a_recipe_that_shows_nothing_may_return_nothing(
    recipe: Careless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "visualize", lambda *_: None)
    assert score(recipe, nullcontext(nn.Linear(1, 1)), MAIN, nullcontext(), print)


def test_only_the_main_rank_draws(recipe: Careless) -> None:
    def draw(name: str, picture: Tensor) -> None:
        raise AssertionError("another rank draws nothing")

    assert score(recipe, nullcontext(nn.Linear(1, 1)), OTHER, nullcontext(), draw)


def test_a_failed_evaluation_leaves_no_trace_either(recipe: Careless) -> None:
    recipe.fails = True
    model, before, left = nn.Linear(2, 2).train(), generators(), []

    @contextmanager
    def gathered() -> Iterator[nn.Module]:
        try:
            yield model
        finally:
            left.append(True)

    with pytest.raises(RuntimeError, match="no such file"):
        score(recipe, gathered(), MAIN, nullcontext(), lambda *_: None)
    assert model.training
    assert generators() == before
    assert left == [True]  # a sharded model is sharded again


# --- several evaluation sets ---------------------------------------------------------------------


class Sets(Toy):
    """Has three sets, and counts how often each is scored."""

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        return {"error": 1.0}

    def evaluation_sets(self) -> dict[str, Any]:
        return {
            "hard": lambda model, world: {"error": 2.0},
            "far": lambda model, world: {"error": 3.0, "rate": 0.5},
        }

    def visualize(self, model: nn.Module) -> dict[str, str]:
        return {"sample": "once upon a time"}


WORDS = (
    "training.num_steps=4",
    "training.evaluate_every_steps=2",
    "training.evaluate_sets={hard: 1, far: null}",
    "checkpoint.metric_name=hard/error",
    "checkpoint.every_steps=1",
)


def test_each_set_has_its_cadence_and_any_score_ranks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, *WORDS, recipe=Sets)
    last = trainer.train()
    assert last == {"error": 1.0, "hard/error": 2.0, "far/error": 3.0, "far/rate": 0.5}
    run = trainer.config.run_dir
    scores = {
        row["step"]: {name for name in row if name.startswith("evaluation/")}
        for row in read_rows(run)
        if any(name.startswith("evaluation/") for name in row)
    }
    hard, own = "evaluation/hard/error", "evaluation/error"
    far = {"evaluation/far/error", "evaluation/far/rate"}
    assert scores == {1: {hard}, 2: {hard, own}, 3: {hard}, 4: {hard, own, *far}}
    assert (run / "checkpoints" / "best").exists()
    assert not any("metric_name" in message for message in caplog.messages)
    texts = sorted(path.name for path in (run / "pictures").glob("*.txt"))
    assert texts == ["sample_00000002.txt", "sample_00000004.txt"]  # with the recipe's own scores


def test_a_run_that_patience_ends_scores_every_set_at_its_end(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, *WORDS, "training.patience=2", recipe=Sets)
    last = trainer.train()  # the first score never improves
    assert (trainer.state.step, trainer.state.finished is None) == (3, False)
    assert last == {"error": 1.0, "hard/error": 2.0, "far/error": 3.0, "far/rate": 0.5}
    rows = [row for row in read_rows(trainer.config.run_dir) if "evaluation/far/rate" in row]
    assert [row["step"] for row in rows] == [3]


def test_sets_without_a_cadence_follow_the_recipe(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.evaluate_every_steps=5")
    cadence = Cadence(Sets(config.settings), config.training)
    assert cadence.due(lambda every: every == 5) == [OWN, "hard", "far"]
    assert [cadence.set_of(name) for name in ("error", "hard/error", "a/b")] == [OWN, "hard", OWN]


def test_a_set_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.evaluate_sets={hardd: 3}")
    with pytest.raises(ConfigError, match=r"training\.evaluate_sets\.hardd.*hard"):
        Cadence(Sets(config.settings), config.training)
    with pytest.raises(ConfigError, match=r"evaluate_sets\.hard=0"):
        toy_config(tmp_path, "training.evaluate_sets={hard: 0}")
