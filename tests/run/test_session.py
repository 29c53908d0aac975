"""overt/run/session.py: what the engine hands over is worded once and ends in the right file."""

import errno
import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import read_events, read_rows, toy_config

from overt.distributed import World
from overt.errors import ConfigError
from overt.health.pace import Rates
from overt.run import session
from overt.run.events import Finished, LossSpike, SkippedStep, SlowRank, StopRequested
from overt.run.mlflow_tracker import MLflow
from overt.run.session import LogLine, Run, make_tracker, ranks_checkpoints

MAIN = World(0, 2, 0, torch.device("cpu"))
OTHER = World(1, 2, 1, torch.device("cpu"))
SKIPPED = SkippedStep(3, math.nan, [(0, 7), (0, 2)], "last (Linear, forward)", True, None)


@contextmanager
def opened(folder: Path, *overrides: str, world: World = MAIN) -> Iterator[Run]:
    run = Run(toy_config(folder, *overrides), world)
    run.open(None, None)
    yield run
    run.close(0)


def line(step: int = 4, spikes: Any = (), slow: SlowRank | None = None) -> LogLine:
    return LogLine(
        step=step,
        epoch=0.8,
        shown={"loss": 0.5, "lr": 0.01},
        rates=Rates(0.25, 8.0, 0.5),
        memory_bytes=2**30,
        numbers={"train/loss": 0.5},
        spikes=spikes,
        slow=slow,
    )


# --- opening and closing --------------------------------------------------------------------------


def test_opening_writes_configuration_and_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config(tmp_path)
    for number, words in enumerate((["overt", "train", "a b"], ["overt", "train", "c"])):
        monkeypatch.setattr("sys.argv", words)
        run = Run(config, World(0, 1, 0, torch.device("cpu")))
        run.open(None if number == 0 else 3, None)
        run.close(0)
    assert (tmp_path / "toy/config.yaml").read_text() == config.text
    first, second = (tmp_path / "toy/command.txt").read_text().splitlines()
    assert first.endswith("  overt train 'a b'")
    assert second.endswith("  overt train c")
    assert [event["step"] for event in read_events(tmp_path / "toy", "resume")] == [3]


def test_before_it_is_open_nothing_is_written(tmp_path: Path) -> None:
    """A refused resume leaves the folder as it was."""
    run = Run(toy_config(tmp_path), MAIN)
    run.record(Finished(3, "enough"))
    run.write_scores({"error": 0.5}, 3)
    run.close(1)
    assert not (tmp_path / "toy").exists()


def test_closing_takes_its_handlers_back(tmp_path: Path) -> None:
    logger = logging.getLogger("overt")
    before = list(logger.handlers)
    run = Run(toy_config(tmp_path), MAIN)
    assert len(logger.handlers) == len(before) + 2
    run.close(0)
    assert logger.handlers == before


def test_warnings_of_a_rank_are_in_its_own_file(tmp_path: Path) -> None:
    run = Run(toy_config(tmp_path), OTHER)
    logging.getLogger("overt.data").warning("odd picture %s", "a.png")
    run.close(0)
    assert "odd picture a.png" in (tmp_path / "toy/warnings/rank_1.txt").read_text()


# --- events ---------------------------------------------------------------------------------------


def test_an_event_is_written_and_printed_where_it_has_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as run:
        run.record(Finished(5, "good enough"))
        (event,) = read_events(tmp_path / "toy", "finished")
        assert (event["step"], event["reason"]) == (5, "good enough")
        assert "finished at step 5: good enough" in capsys.readouterr().out
        run.record(StopRequested(5, 12, "SIGTERM"))  # its words are those of the error
        assert read_events(tmp_path / "toy", "preempted")[0]["signal"] == "SIGTERM"
        assert "StopRequested" not in capsys.readouterr().out


@pytest.mark.parametrize("world", [MAIN, OTHER])
def test_samples_of_a_skipped_step_are_written_by_every_rank(world: World, tmp_path: Path) -> None:
    run = Run(toy_config(tmp_path), world)
    for _ in range(2):
        run.record(SKIPPED)
    run.close(0)
    path = tmp_path / f"toy/skipped/rank_{world.rank}.jsonl"
    row, again = (json.loads(text) for text in path.read_text().splitlines())
    assert row == again
    assert row["samples"] == [{"epoch": 0, "index": 7}, {"epoch": 0, "index": 2}]
    assert (row["step"], row["loss"]) == (3, "nan")
    assert row["first_nonfinite_module"] == "last (Linear, forward)"


def test_samples_that_cannot_be_written_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the other logs: a full disk and a step with NaN are no reason to die."""

    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run(toy_config(tmp_path), OTHER)
    monkeypatch.setattr(session, "append_line", full_disk)
    run.record(SKIPPED)
    run.close(0)
    (message,) = caplog.messages
    assert "the 2 samples of the skipped step 3 could not be written" in message
    assert "No space left on device" in message
    assert "[(0, 7), (0, 2)]" in message


def test_all_spikes_are_written_and_the_highest_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as run:
        run.record_spikes([])
        assert capsys.readouterr().out == ""
        run.record_spikes([LossSpike(2, 9.0, 1.5), LossSpike(5, 30.0, 1.5), LossSpike(6, 8.0, 1.5)])
        assert [event["step"] for event in read_events(tmp_path / "toy", "loss_spike")] == [2, 5, 6]
        (printed,) = capsys.readouterr().out.splitlines()
        assert "3 step(s)" in printed
        assert "step 5: 30, above the limit of 1.5" in printed
        assert "training.loss_spike" in printed


# --- numbers --------------------------------------------------------------------------------------


def test_a_log_line_shows_where_training_stands_and_logs_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as run:
        run.console.total_steps = 12
        slow = SlowRank(4, "node7", 1, "in the forward pass", 0.9, 0.2)
        run.write_line(line(spikes=[LossSpike(3, 9.0, 1.5)], slow=slow))
        spike, straggler, shown = capsys.readouterr().out.splitlines()
        assert "step 3: 9" in spike
        assert "rank 1 on node7 holds up the others" in straggler
        assert shown.startswith("step 4/12  33%  epoch 0.8  loss 0.5  lr 0.01  8 samples/s  ETA")
        assert read_rows(tmp_path / "toy")[-1]["train/loss"] == 0.5
        assert read_events(tmp_path / "toy", "straggler")[0]["host"] == "node7"


@pytest.mark.parametrize("wanted", [True, False])
def test_system_numbers_are_logged_where_they_are_asked_for(wanted: bool, tmp_path: Path) -> None:
    with opened(tmp_path, f"logging.system_metrics={wanted}") as run:
        run.write_line(line())
    names = read_rows(tmp_path / "toy")[-1]
    assert any(name.startswith("system/") for name in names) == wanted


def test_scores_are_logged_under_evaluation_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as run:
        run.write_scores({"error": 0.25, "accuracy": 0.5}, 6)
        assert read_rows(tmp_path / "toy")[-1] | {"time": 0} == {
            "step": 6, "time": 0, "evaluation/error": 0.25, "evaluation/accuracy": 0.5,
        }  # fmt: skip
        assert capsys.readouterr().out == "step 6: error 0.25, accuracy 0.5\n"


@pytest.mark.parametrize(("mode", "best"), [("max", "0.9"), ("min", "0.4")])
def test_the_best_score_is_that_of_all_sessions(
    mode: str, best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for steps that come again; a score that is NaN is never the best."""
    words = ("checkpoint.metric_name=accuracy", f"checkpoint.mode={mode}")
    with opened(tmp_path, *words) as run:
        for step, value in enumerate((0.9, math.nan, 0.4, 0.1, 2.0), start=1):
            run.write_scores({"accuracy": value}, step)
    shown: list[str] = []
    run = Run(toy_config(tmp_path, *words), MAIN)
    monkeypatch.setattr(run.console, "keep_score", shown.append)
    run.open(3, None)
    run.write_scores({"accuracy": 0.5}, 4)
    run.close(0)
    assert shown == [f"accuracy 0.5 (best {best})"]


def test_other_ranks_write_nothing_of_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("overt.run.log.is_main_process", lambda: False)
    with opened(tmp_path, world=OTHER) as run:
        run.write_line(line())
        run.write_scores({"error": 0.25}, 6)
        run.record(Finished(5, "enough"))
    assert not (tmp_path / "toy").exists()
    assert capsys.readouterr().out == ""


# --- trackers and the ranking score ---------------------------------------------------------------


@pytest.mark.parametrize("home", ["run", "engine"])
def test_a_tracker_is_found_where_it_is_and_where_it_was(home: str) -> None:
    made = make_tracker({"_target_": f"overt.{home}.mlflow_tracker.MLflow", "experiment": "mine"})
    assert (made.func, made.keywords) == (MLflow, {"experiment": "mine"})  # type: ignore[attr-defined]


def test_a_tracker_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"logging\.trackers"):
        make_tracker({"_target_": "overt.run.no_tracker.Nothing"})


def test_only_scores_that_hold_the_metric_rank_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert ranks_checkpoints("error", {"error": 1.0})
    assert not ranks_checkpoints(None, {"error": 1.0})
    assert not ranks_checkpoints("error", {})  # not evaluated at this step
    assert caplog.messages == []
    assert not ranks_checkpoints("eror", {"error": 1.0})
    assert "checkpoint.metric_name=eror is not among the scores (error)" in caplog.messages[0]


@pytest.mark.parametrize("metric_name", ["error", "null"])
def test_an_evaluation_without_scores_is_reported_where_one_ranks_checkpoints(
    metric_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(toy_config(tmp_path, f"checkpoint.metric_name={metric_name}"), MAIN)
    run.write_scores({}, 6)
    run.close(0)
    expected = ["the evaluation at step 6 returned no scores"] if metric_name == "error" else []
    assert [message.partition(",")[0] for message in caplog.messages] == expected


def test_an_unknown_further_metric_is_reported_where_its_set_was_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = "checkpoint.also_best=[eror,error,rare/aj,often/aj,ofen/aj]"
    # `rare` has a separate interval; all other sets are due together.
    run = Run(toy_config(tmp_path, names), MAIN)
    run.config.training.evaluate_sets["rare"] = 100
    run.write_scores({"error": 0.25, "often/aj": 0.5}, 6)
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        f"checkpoint.also_best={name} is not among the scores" for name in ("eror", "ofen/aj")
    ]
    caplog.clear()
    run.write_scores({"rare/oa": 0.25}, 8)
    run.close(0)
    assert caplog.messages == [
        "checkpoint.also_best=rare/aj is not among the scores (rare/oa): no checkpoint is called "
        "best by it"
    ]
