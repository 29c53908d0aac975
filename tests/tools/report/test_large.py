"""overt/tools/report/large.py: a log of any size is shown, and never read as a whole."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from sample_runs import write

from overt.tools.report import large, reading
from overt.tools.report.reading import Budget, RunFollower, open_brief, open_run

START = {"time": 1000.0, "kind": "start"}
SMALL = Budget(whole_bytes=2000, samples=20)


def rows(count: int) -> list[dict[str, float]]:
    """A log with a score after every 50th row."""
    lines = []
    for step in range(1, count + 1):
        lines.append({"step": step, "time": 1000.0 + step, "train/loss": 1.0 / step})
        if step % 50 == 0:
            lines.append({"step": step, "time": 1000.0 + step, "evaluation/e": float(step)})
    return lines


def test_samples_lie_over_the_whole_length_and_no_score_is_missed(tmp_path: Path) -> None:
    run = open_run(write(tmp_path, [START], rows(400)), budget=SMALL)
    loss = run.curves["train/loss"]
    assert run.sampled_bytes > SMALL.whole_bytes
    assert loss.steps[0] == 1
    assert loss.steps[-1] == run.step == 400
    assert loss.steps == sorted(set(loss.steps))
    assert len(loss.steps) < 100
    gaps = [after - before for before, after in zip(loss.steps, loss.steps[1:], strict=False)]
    assert max(gaps) <= 400 // 20 + 2
    assert run.curves["evaluation/e"].steps == list(range(50, 401, 50))
    assert run.sessions[0].end == 1400.0


def test_very_many_scores_are_thinned_and_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit all later scores were missing, up to those at the end of the log."""
    monkeypatch.setattr(large, "MOST_ROWS", 10)
    run = open_run(write(tmp_path, [START], rows(2000)), budget=Budget(2000, samples=5))
    steps = run.curves["evaluation/e"].steps
    assert (steps[0], steps[-1]) == (50, 2000)
    assert max(after - before for before, after in pairwise(steps)) <= 8 * 50
    assert len(steps) <= 10 + 5 + 20  # matches, samples and the end


def test_a_small_log_is_read_as_it_is(tmp_path: Path) -> None:
    run = open_run(write(tmp_path, [START], rows(60)))
    assert (run.sampled_bytes, len(run.curves["train/loss"].steps)) == (0, 60)


def test_what_is_added_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, [START], rows(400))
    with RunFollower(folder, budget=SMALL) as follower:
        before = len(follower.read().curves["train/loss"].steps)
        monkeypatch.setattr(large, "rows_before", pytest.fail)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 401, "time": 1.0, "train/loss": 9.0}\n')
        after = follower.read().curves["train/loss"]
    assert (len(after.steps), after.last) == (before + 1, 9.0)


def test_a_line_about_a_run_needs_its_end_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "training:\n  num_steps: 1000\n  num_epochs: null\ncheckpoint:\n  metric_name: e\n"
    folder = write(tmp_path, [START], rows(400), config)
    monkeypatch.setattr(reading, "read_config", pytest.fail)
    run = open_brief(folder)
    assert (run.step, run.total_steps) == (400, 1000)
    assert len(run.curves["train/loss"].steps) < 60
    assert run.config == {
        "training.num_steps": 1000, "training.num_epochs": None, "checkpoint.metric_name": "e",
    }  # fmt: skip
    long = {"step": 7, "time": 1.0} | {f"histogram/{index}": 1.0 for index in range(3000)}
    assert open_brief(write(tmp_path / "long", [START], [long, long])).step == 7


def test_sessions_of_a_long_history_are_found(tmp_path: Path) -> None:
    spikes = [{"time": 2000.0, "kind": "loss_spike", "step": 1}] * 2000
    resume = {"time": 3000.0, "kind": "resume", "step": 5, "pid": 1, "host": "elsewhere"}
    run = open_brief(write(tmp_path, [START, *spikes, resume, *spikes], rows(3)))
    assert [session.begin for session in run.sessions] == [1000.0, 3000.0]


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "config.yaml", "command.txt"])
def test_a_sparse_file_of_a_hundred_gigabytes_is_not_read(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, [START], rows(3))
    monkey = pytest.MonkeyPatch()
    monkey.setattr(large, "MOST_SCANNED", 2**24)
    path = folder / name
    path.touch()
    os.truncate(path, 100 * 2**30)
    try:
        open_brief(folder)
        assert open_run(folder).name == folder.name
    finally:
        monkey.undo()
        path.unlink()


def test_links_out_of_the_run_folder_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"step": 1, "time": 1.0, "scores": {"a": 1.0}}) + "\n")
    folder = write(tmp_path / "run", [START], rows(3))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/picture.png").write_bytes(b"x")
    (folder / "evaluation").symlink_to(tmp_path / "outside")
    for name in ("command.txt", "config.yaml", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
    run = open_run(folder)
    assert (run.commands, run.config, run.curves, run.pictures) == ([], {}, {}, [])
    (folder / "command.txt").unlink()
    (folder / "commands").write_text("mine\n")
    (folder / "command.txt").symlink_to("commands")  # stays inside
    assert open_run(folder).commands == ["mine"]


def test_the_end_of_a_run_with_long_rows_is_seen_among_many_runs(tmp_path: Path) -> None:
    """A run of a thousand may read 2 kB of its end; one row can be longer than that."""
    wide = [
        {"step": step, "time": 1000.0 + step} | {f"weights/{index}": 1.0 for index in range(400)}
        for step in range(1, 41)
    ]
    run = open_run(write(tmp_path, [START], wide), budget=Budget.shared_by(1000))
    assert run.step == 40
