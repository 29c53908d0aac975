"""overt/data/making.py: a folder of synthetic data has one set of settings, and many makers."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.config import build_recipe, load
from overt.data.making import MANIFEST, claim_folder, map_in_processes
from overt.errors import DataError, StoppedAtStart
from overt.health.preemption import SIGNALS

# Tiny recipes that make their data, with as little of it as shows a race.
FIRST_STARTS = {
    "hjepa_tiny": ["data.synthetic.classes=4", "data.synthetic.per_class=24"],
    "cotracker3_tiny": [
        "data.synthetic.count=6", "data.held_out=2", "data.synthetic.points=400",
    ],
    "pcdiff_tiny": [
        "data.synthetic.count=4", "data.synthetic.side=24", "data.synthetic.points=800",
    ],
    "blade_depthnet_tiny": ["data.synthetic.train=40", "data.synthetic.test=4"],
}  # fmt: skip


def meet(folder: Path, ranks: int) -> None:
    """Wait until all processes are here: they go on at the same moment."""
    (folder / f"here_{os.environ['RANK']}").touch()
    deadline = time.monotonic() + 60
    while len(list(folder.glob("here_*"))) < ranks:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def start(recipe: str, folder: Path) -> list[str]:
    """As much of a first start as makes data, and reads all of them."""
    words = [f"recipe={recipe}", f"data.root={folder / 'data'}", *FIRST_STARTS[recipe]]
    built = build_recipe(load(words))
    meet(folder, 2)
    data = built.build_dataset()
    for index in range(len(data)):
        data.sample(index, np.random.default_rng(index))
    paths = (folder / "data").rglob("*")
    return sorted(path.relative_to(folder).as_posix() for path in paths)


# All make their data under the same lock.
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            recipe, marks=[pytest.mark.long] * (recipe not in ("hjepa_tiny", "pcdiff_tiny"))
        )
        for recipe in FIRST_STARTS
    ],
)
def test_two_first_starts_at_once_do_not_disturb_each_other(
    recipe: str, run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    run_processes(start, 2, recipe, tmp_path)  # each a run by itself: no process group
    left = [path for path in (tmp_path / "data").rglob("*") if path.name.endswith(".partial")]
    assert left == []


def claim(folder: Path, rounds: int, seed: int) -> list[str]:
    meet(folder, 2)
    answers = []
    for number in range(rounds):
        root = folder / str(number)
        try:
            claim_folder(root, {"format": 1, "seed": seed + int(os.environ["RANK"])}, "skulls")
            (root / f"content_{os.environ['RANK']}").touch()
            answers.append("mine")
        except DataError as error:
            answers.append(str(error))
    return answers


def test_of_two_settings_that_claim_a_folder_at_once_one_gets_it(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    first, second = run_processes(claim, 2, tmp_path, 200, 0)
    for number, answers in enumerate(zip(first, second, strict=True)):
        winners = [rank for rank, answer in enumerate(answers) if answer == "mine"]
        assert len(winners) == 1
        assert "holds other synthetic skulls" in answers[1 - winners[0]]
        stored = json.loads((tmp_path / str(number) / MANIFEST).read_text())
        assert stored["seed"] == winners[0]
        assert not list((tmp_path / str(number)).glob(".*"))


def test_a_folder_is_claimed_once_and_found_again(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "set"
    claim_folder(root, {"format": 1, "seed": 0}, "skulls")
    (root / "content").touch()
    claim_folder(root, {"format": 1, "seed": 0}, "skulls")
    with pytest.raises(DataError, match="seed 0 there, 1 requested"):
        claim_folder(root, {"format": 1, "seed": 1}, "skulls")
    (root / MANIFEST).write_text("{")
    with pytest.raises(DataError, match=r"synthetic\.json is not readable"):
        claim_folder(root, {"format": 1, "seed": 0}, "skulls")


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    claim_folder(tmp_path / "set", {"seed": 0}, "skulls")
    assert [path.name for path in (tmp_path / "set").iterdir()] == [MANIFEST]


@pytest.mark.parametrize("content", ["precious.txt", ".hidden", "folder/file"])
def test_other_content_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / content).parent.mkdir(exist_ok=True)
    (tmp_path / content).write_text("mine")
    with pytest.raises(DataError, match="not mixed into other data"):
        claim_folder(tmp_path, {"seed": 0}, "skulls")
    assert not (tmp_path / MANIFEST).exists()


def test_results_come_in_order_from_processes_and_without() -> None:
    assert list(map_in_processes(abs, [-3, 2, -1], 0)) == [3, 2, 1]
    assert list(map_in_processes(abs, [-3, 2, -1], 2)) == [3, 2, 1]


def test_a_worker_that_dies_is_an_error_with_a_remedy() -> None:
    with pytest.raises(DataError, match=r"one of 1 worker processes died.*use fewer workers"):
        list(map_in_processes(os._exit, [1], 1))


def wait_for_a_file(paths: tuple[Path, Path]) -> str:
    """Work that ends only once a file is there, or after a minute; then a second one tells."""
    gate, done = paths
    deadline = time.monotonic() + 60
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    done.touch()
    return done.name


def test_workers_leave_signals_to_their_maker_and_end_with_its_work(tmp_path: Path) -> None:
    gates = [tmp_path, tmp_path / "gate", *[tmp_path / "never"] * 6]
    items = [(gate, tmp_path / str(number)) for number, gate in enumerate(gates)]
    results = map_in_processes(wait_for_a_file, items, 2, start="spawn")
    assert next(results) == "0"
    workers = multiprocessing.active_children()
    for number in (*SIGNALS, signal.SIGINT):  # as for a whole job
        for worker in workers:
            assert worker.pid is not None
            os.kill(worker.pid, number)
    (tmp_path / "gate").touch()
    assert next(results) == "1"
    with pytest.raises(StoppedAtStart):  # the maker hears of it while both are busy
        results.throw(StoppedAtStart("asked to stop"))  # type: ignore[attr-defined]
    assert not any(worker.is_alive() for worker in workers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "gate"]


def make_until_killed(folder: Path) -> None:
    """A maker that is killed while its worker is busy."""
    items = [(folder, folder / "0"), (folder / "never", folder / "1")]
    results = map_in_processes(wait_for_a_file, items, 1, start="spawn")
    next(results)
    (worker,) = multiprocessing.active_children()
    (folder / "worker").write_text(str(worker.pid))
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_do_not_outlive_a_maker_that_was_killed(tmp_path: Path) -> None:
    maker = multiprocessing.get_context("spawn").Process(target=make_until_killed, args=(tmp_path,))
    maker.start()
    maker.join(120)
    assert maker.exitcode == -signal.SIGKILL
    worker = int((tmp_path / "worker").read_text())
    deadline = time.monotonic() + 30  # half of what the worker would work
    while _is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(worker)
    assert not (tmp_path / "1").exists()


def _is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
