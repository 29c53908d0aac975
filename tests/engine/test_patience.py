"""overt/engine/patience.py: a run that no longer improves ends, says why, and stays ended."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_recipe.recipe import Toy
from toy_runs import TOY, cut_back, losses_by_step, make_trainer, read_events, toy_config

from overt.engine.patience import Patience
from overt.errors import ConfigError
from overt.train import main

RUNS = Callable[..., list[Any]]
# The error falls from step to step, so the highest is the first: nothing improves on it.
STUCK = ["checkpoint.mode=max", "training.evaluate_every_steps=1", "training.patience=2"]


def patience(limit: int | None, mode: str = "min", name: str | None = "error") -> Patience:
    section = toy_config(Path("runs")).checkpoint
    return Patience(limit, replace(section, metric_name=name, mode=mode))


def seen(counter: Patience, *scores: float) -> list[bool]:
    """Whether the run is finished after each of these scores."""
    return [counter.see({"error": score}) is not None for score in scores]


# --- the count ------------------------------------------------------------------------------------


def test_only_a_better_score_starts_the_count_again() -> None:
    assert seen(patience(2), 3.0, 4.0, 2.0, 2.0, 2.5) == [False, False, False, False, True]
    assert seen(patience(2, "max"), 3.0, 4.0, 2.0, 4.0) == [False, False, False, True]
    assert seen(patience(1), 3.0, 2.0, 1.0, 1.0) == [False, False, False, True]


def test_nan_is_never_an_improvement() -> None:
    assert seen(patience(2), math.nan, math.nan) == [False, True]
    assert seen(patience(2), math.nan, 5.0, math.nan, 4.0, math.nan) == [False] * 5


def test_without_a_limit_or_the_score_nothing_counts() -> None:
    assert seen(patience(None), 1.0, 2.0, 3.0) == [False] * 3
    counter = patience(1)
    assert counter.see({"other": 1.0}) is None
    assert (counter.best, counter.waited) == (None, 0)


def test_the_reason_names_score_count_setting_and_best() -> None:
    counter = patience(2)
    seen(counter, 0.25, 0.5)
    reason = counter.see({"error": 0.75})
    assert reason == (
        "error has not improved for 2 evaluations (training.patience); the best is 0.25"
    )


def test_a_limit_needs_the_score_to_improve() -> None:
    with pytest.raises(ConfigError, match=r"training\.patience=3 needs checkpoint\.metric_name"):
        patience(3, name=None)


def test_the_count_comes_back_from_a_state() -> None:
    counter, other = patience(3), patience(3)
    seen(counter, 1.0, 2.0, 2.0)
    other.load_state_dict(counter.state_dict())
    assert seen(other, 2.0) == [True]
    old = patience(3)
    old.load_state_dict(None)  # of a checkpoint from before patience
    assert seen(old, 1.0) == [False]


@pytest.mark.parametrize(("mode", "name"), [("min", "error"), ("max", "accuracy")])
def test_another_score_starts_a_new_count(mode: str, name: str) -> None:
    """The best of another score, or for the other direction, says nothing about this one."""
    before, after = patience(2, "max", "error"), patience(2, mode, name)
    seen(before, 0.1, 0.1, 0.1)
    after.load_state_dict(before.state_dict())
    assert (after.best, after.waited) == (None, 0)
    assert after.continues()
    assert [after.see({name: score}) is None for score in (0.5, 0.5, 0.5)] == [True, True, False]


def test_a_state_that_does_not_name_its_score_goes_on() -> None:
    counter = patience(2, "max")
    counter.load_state_dict({"best": 3.0, "waited": 1, "ended": False})
    assert seen(counter, 2.0) == [True]


# --- a run ----------------------------------------------------------------------------------------


def assert_finished(run: Path, step: int, reason: str) -> None:
    (event,) = read_events(run, "finished")
    assert event["step"] == step
    assert reason in event["reason"]
    assert (run / "checkpoints/latest").resolve().name == f"step_{step:08d}"
    assert max(losses_by_step(run)) == step


def test_the_command_ends_with_code_0_and_remembers_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--package", str(TOY), "recipe=toy", f"output_dir={tmp_path}", *STUCK]
    assert main(words) == 0
    reason = "error has not improved for 2 evaluations (training.patience)"
    assert f"finished at step 3: {reason}" in capsys.readouterr().out
    assert_finished(tmp_path / "toy", 3, reason)
    assert main(words) == 0  # started again it has nothing to do, and says so
    assert f"nothing is left to train: {reason}" in capsys.readouterr().out
    assert_finished(tmp_path / "toy", 3, reason)


def test_a_finished_run_returns_its_last_scores_again(tmp_path: Path) -> None:
    scores = make_trainer(tmp_path, *STUCK).train()
    assert scores.keys() == {"error"}
    assert make_trainer(tmp_path, *STUCK).train() == scores
    # So does one that reached its last step.
    whole = make_trainer(tmp_path / "whole").train()
    assert make_trainer(tmp_path / "whole").train() == whole != {}


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path: Path) -> None:
    settings = [*STUCK, "training.patience=4", "checkpoint.every_steps=1"]
    settings.append("checkpoint.keep_last_n=9")
    make_trainer(tmp_path, *settings).train()
    assert_finished(tmp_path / "toy", 5, "4 evaluations")
    cut_back(tmp_path / "toy", tmp_path / "cut/toy", 3)
    make_trainer(tmp_path / "cut", *settings).train()
    assert max(losses_by_step(tmp_path / "cut/toy")) == 5


class Enough(Toy):
    """Finished as soon as the error is known after four steps."""

    updates = 0

    def after_step(self, model: Any, step: int, applied: Any, carry: Any) -> None:
        super().after_step(model, step, applied, carry)
        self.updates = step + 1

    def finished(self, scores: dict[str, float]) -> str | None:
        return f"an error of {scores['error']:.3f} is enough" if self.updates >= 4 else None


EVERY_TWO = ["training.evaluate_every_steps=2", "training.evaluate_at_start=true"]


def train_enough(folder: Path) -> tuple[int, dict[str, float]]:
    trainer = make_trainer(folder, *EVERY_TWO, recipe=Enough)
    scores = trainer.train()
    step = trainer.state.step
    del trainer  # before the process group goes
    return step, scores


def test_a_recipe_says_that_it_is_finished(
    run_processes: Callable[..., Any], tmp_path: Path
) -> None:
    step, scores = train_enough(tmp_path)
    assert step == 4
    reason = f"an error of {scores['error']:.3f} is enough"
    assert_finished(tmp_path / "toy", 4, reason)
    assert train_enough(tmp_path) == (4, scores)
    # All ranks end at the same step and save together.
    both = run_processes(train_enough, 2, tmp_path / "two")
    assert both[0] == both[1]
    assert_finished(tmp_path / "two/toy", 4, "is enough")


def test_a_reason_at_the_last_step_is_no_early_end(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, *EVERY_TWO, "training.num_steps=4", recipe=Enough)
    trainer.train()
    assert trainer.state.finished is None
    assert read_events(tmp_path / "toy", "finished") == []


def test_a_run_that_patience_ended_goes_on_with_more(tmp_path: Path) -> None:
    words = (*EVERY_TWO, "training.num_steps=12", "checkpoint.metric_name=error")

    def train(patience: str) -> Any:
        trainer = make_trainer(tmp_path, *words, f"training.patience={patience}", recipe=Flat)
        trainer.train()
        return trainer.state

    ended = train("1")
    assert (ended.step, ended.finished is None) == (2, False)
    again = train("1")  # as before
    assert (again.step, again.finished) == (2, ended.finished)
    assert train("2").step == 4  # one more evaluation without a better score
    assert train("null").step == 12
    assert len(read_events(tmp_path / "toy", "finished")) == 2


class Flat(Enough):
    """Never gets better."""

    def evaluate(self, model: Any, world: Any) -> dict[str, float]:
        return {"error": 1.0}

    def finished(self, scores: dict[str, float]) -> str | None:
        return None
