"""overt/health/heartbeat.py: who stands still is noticed, written down and named."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import toy_config

from overt.distributed import World
from overt.health.heartbeat import Beat, Heartbeat, describe, keep_flight_records

RUNS = Callable[..., list[Any]]
SHORT = 1.0 / 60  # minutes; longer than a step takes on a busy machine


def beat(number: int, progress: int, doing: str = "computing") -> Beat:
    return Beat(number, progress, progress // 2, doing, "host", 7)


def test_the_one_behind_is_named_and_a_silent_one_before_it() -> None:
    first = {0: beat(1, 8), 1: beat(1, 7, "waiting for data"), 2: beat(1, 8)}
    later = {rank: one._replace(number=2) for rank, one in first.items()}
    assert describe(first, later, 3) == (
        "Behind the others: rank 1 (waiting for data, step 3; process 7 on host)."
    )
    assert "No heartbeat from rank 2 (computing" in describe(first, later | {2: first[2]}, 3)
    assert "rank 3 (no heartbeat yet)" in describe(first, later, 4)
    level = {rank: beat(rank, 8) for rank in range(2)}
    assert describe({}, level, 2) == "All ranks are in the same phase: computing."


def test_one_process_writes_its_stacks_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World(0, 1, 0, torch.device("cpu"))
    heartbeat = Heartbeat(world, None, tmp_path / "hang", SHORT, ends_process=False)
    heartbeat.at(3, "waiting for data")
    heartbeat.start()
    path = tmp_path / "hang/rank_0.txt"
    stuck_in_here(lambda: path.exists() and "There is only one rank." in path.read_text())
    heartbeat.close()
    assert "stuck_in_here" in path.read_text()
    said = capfd.readouterr().err
    assert "HANG: no progress for" in said
    assert "(waiting for data, step 3)" in said


def stuck_in_here(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done() and time.monotonic() < until:
        threading.Event().wait(0.05)


def test_progress_keeps_it_quiet_and_null_keeps_it_away(tmp_path: Path) -> None:
    world = World(0, 1, 0, torch.device("cpu"))
    off = Heartbeat(world, None, tmp_path / "off", None, ends_process=True)
    off.start()
    assert "overt-heartbeat" not in [thread.name for thread in threading.enumerate()]
    lively = Heartbeat(world, None, tmp_path / "lively", 1.0, ends_process=True)
    lively.start()
    assert "overt-heartbeat" in [thread.name for thread in threading.enumerate()]
    lively.close()
    assert not list(tmp_path.iterdir())


def hang_at(folder: Path, rank: int, *overrides: str) -> None:
    """Train, and let one process wait for data that never come."""
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    world = init_distributed("cpu")
    config = toy_config(folder, f"training.hang_minutes={SHORT}", *overrides)
    trainer = Trainer(config, build_recipe(config), world)
    inner = trainer.loader.next_step

    def next_step() -> Any:
        if trainer.state.step == 4 and world.rank == rank:
            threading.Event().wait(100)
        return inner()

    trainer.loader.next_step = next_step  # type: ignore[method-assign]
    trainer.train()


def test_every_process_leaves_its_stacks_and_the_one_behind_is_named(
    run_processes: RUNS, tmp_path: Path
) -> None:
    """Rank 1 waits for data, rank 0 for rank 1; with stop both end."""
    codes = run_processes(hang_at, 2, tmp_path, 1, "training.hang=stop", dies=True)
    assert codes == [1, 1]
    folder = tmp_path / "toy/hang"
    stacks = [(folder / f"rank_{rank}.txt").read_text() for rank in range(2)]
    assert "next_step" in stacks[1]
    assert "train_step" in stacks[0]
    for text in stacks:
        assert "Behind the others: rank 1 (waiting for data, step 4" in text
    collectives = json.loads((folder / "collectives_rank_0.json").read_text())
    assert collectives["entries"]


def test_flight_records_go_to_the_run_folder_unless_the_user_says_otherwise(
    tmp_path: Path,
) -> None:
    fresh: dict[str, str] = {}
    keep_flight_records(tmp_path / "hang", fresh)
    assert fresh["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "hang/flight_rank_")
    assert int(fresh["TORCH_FR_BUFFER_SIZE"]) > 0
    assert (tmp_path / "hang").is_dir()
    chosen = {"TORCH_FR_DUMP_TEMP_FILE": "/elsewhere/x_", "TORCH_FR_BUFFER_SIZE": "5"}
    keep_flight_records(tmp_path / "other", chosen)
    assert chosen["TORCH_FR_DUMP_TEMP_FILE"] == "/elsewhere/x_"
    assert chosen["TORCH_FR_BUFFER_SIZE"] == "5"
    assert not (tmp_path / "other").exists()
