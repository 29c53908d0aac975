"""overt/run/lock.py: one process group per run, and none that a dead one keeps out."""

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from toy_runs import TOY, make_trainer

from overt.errors import LaunchError
from overt.run.lock import Owner, RunLock, read_owner, this_process
from overt.train import main as train_main


@pytest.fixture
def stranger() -> Iterator[Owner]:
    """A living process of this host that is not this one."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    try:
        yield replace(this_process(), pid=child.pid, started=started)
    finally:
        child.kill()
        child.wait()


def write(path: Path, owner: Owner, age_seconds: float = 0.0) -> Path:
    path.write_text(json.dumps(asdict(owner)))
    os.utime(path, (time.time() - age_seconds,) * 2)
    return path


def test_a_lock_is_there_while_it_is_held(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "run/lock.json")
    lock.acquire()
    assert read_owner(lock.path) == lock.owner
    lock.check()
    lock.release()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_living_owner_is_named(tmp_path: Path, stranger: Owner) -> None:
    lock = RunLock(write(tmp_path / "lock.json", stranger))
    with pytest.raises(LaunchError, match=f"pid {stranger.pid} on {stranger.host}, since 20"):
        lock.acquire()
    assert read_owner(lock.path) == stranger


def test_a_folder_that_was_copied_while_it_trains_is_free(tmp_path: Path, stranger: Owner) -> None:
    """The lock is copied with it, but its owner trains where the first one lies."""
    original = tmp_path / "run/lock.json"
    original.parent.mkdir()
    write(original, replace(stranger, path=str(original)))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    lock = RunLock(tmp_path / "copy/lock.json", wait=pytest.fail)
    lock.acquire()
    lock.release()
    with pytest.raises(LaunchError, match=f"pid {stranger.pid}"):
        RunLock(original).acquire()


@pytest.mark.parametrize("how", ["moved", "linked", "hard link", "taken over"])
def test_what_is_no_copy_stays_held(how: str, tmp_path: Path, stranger: Owner) -> None:
    original, other = tmp_path / "run/lock.json", tmp_path / "other/lock.json"
    original.parent.mkdir()
    write(original, replace(stranger, path=str(original)))
    match how:
        case "moved":
            original.parent.rename(other.parent)
        case "linked":
            other.parent.symlink_to(original.parent)
        case "hard link":
            other.parent.mkdir()
            other.hardlink_to(original)
        case "taken over":  # the first lock is of a later start, and says nothing of this one
            shutil.copytree(original.parent, other.parent)
            write(original, replace(stranger, path=str(original), token="another"))
    with pytest.raises(LaunchError, match=f"pid {stranger.pid}"):
        RunLock(other).acquire()


def test_a_living_owner_since_an_impossible_time_is_named(tmp_path: Path, stranger: Owner) -> None:
    for since in (1e300, float("inf"), float("nan")):
        path = write(tmp_path / "lock.json", replace(stranger, since=since))
        with pytest.raises(LaunchError, match=f"pid {stranger.pid} .* since an unknown time"):
            RunLock(path).acquire()


def test_a_second_start_of_a_run_is_refused_and_writes_nothing(
    tmp_path: Path, stranger: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy").mkdir()
    write(tmp_path / "toy/lock.json", stranger)
    words = ["recipe=toy", f"output_dir={tmp_path}", "--package", str(TOY)]
    assert train_main(words) == 1
    assert "is being trained by another process (pid" in capsys.readouterr().err
    assert not (tmp_path / "toy/metrics.jsonl").exists()


def test_a_trainer_built_in_python_holds_its_folder_until_it_is_done(
    tmp_path: Path, stranger: Owner
) -> None:
    """As `overt train` does: without the command, nobody else would keep a second start out."""
    path = tmp_path / "toy/lock.json"
    trainer = make_trainer(tmp_path, "training.num_steps=1")
    owner = read_owner(path)
    assert owner is not None
    assert owner.pid == os.getpid()
    trainer.train()
    assert not path.exists()
    write(path, stranger)
    with pytest.raises(LaunchError, match=f"pid {stranger.pid}"):
        make_trainer(tmp_path, "training.num_steps=2")
    assert read_owner(path) == stranger


def test_a_trainer_that_is_dropped_gives_its_folder_back(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "training.num_steps=1")
    assert (tmp_path / "toy/lock.json").exists()
    del trainer
    gc.collect()
    assert not (tmp_path / "toy/lock.json").exists()


@pytest.mark.parametrize("field", ["killed", "pid was reused", "zombie"])
def test_a_dead_owner_on_this_host_is_replaced_at_once(tmp_path: Path, field: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = "1" if field == "pid was reused" else ""
    owner = replace(this_process(), pid=child.pid, started=started or "2")
    if field == "killed":
        child.wait()
    else:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
    lock = RunLock(write(tmp_path / "lock.json", owner), wait=pytest.fail)
    lock.acquire()
    assert read_owner(lock.path) == lock.owner
    lock.release()
    child.wait()


def test_an_earlier_run_of_this_process_is_replaced(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path / "lock.json"), RunLock(tmp_path / "lock.json")
    first.acquire()
    second.acquire()
    first.beat()
    with pytest.raises(LaunchError, match="was taken over by pid"):
        first.check()
    first.release()
    assert read_owner(second.path) == second.owner
    second.beat()
    second.check()
    second.release()


def elsewhere(**changes: object) -> Owner:
    return replace(this_process(), host="node7", machine="of node7", **changes)  # type: ignore[arg-type]


def test_another_host_without_a_heartbeat_is_replaced_at_once(tmp_path: Path) -> None:
    lock = RunLock(write(tmp_path / "lock.json", elsewhere(), 1000), wait=pytest.fail)
    lock.acquire()
    lock.release()


def test_a_heartbeat_on_another_host_is_a_living_owner(tmp_path: Path) -> None:
    path = write(tmp_path / "lock.json", elsewhere(), 30)
    lock = RunLock(path, wait=lambda _: os.utime(path))
    with pytest.raises(LaunchError, match="on node7"):
        lock.acquire()


def test_a_host_that_just_died_is_waited_for_and_then_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "lock.json", elsewhere(), 80)
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        lock._stale_seconds -= 5 * seconds  # the clock of the file server cannot be moved

    lock = RunLock(path, wait=wait)
    lock.acquire()
    assert looks
    lock.release()


def test_a_requeued_job_takes_over_from_itself_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    path = write(tmp_path / "lock.json", elsewhere(restart=0))
    lock = RunLock(path, wait=pytest.fail)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"host": {}}', "[" * 2000),
        '{"host": "a", "pid": 1e999, "since": 0, "token": ""}',
    ],
)
def test_a_file_without_an_owner_is_replaced_once_it_is_old(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(content)
    os.utime(path, (1, 1))
    lock = RunLock(path, wait=pytest.fail)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("content", ["an owner", "nothing"])
@pytest.mark.parametrize("attempt", range(10))
def test_of_many_that_find_a_dead_owner_one_gets_the_lock(
    attempt: int, content: str, tmp_path: Path
) -> None:
    write(tmp_path / "lock.json", elsewhere(), 1000)
    if content == "nothing":
        (tmp_path / "lock.json").write_text("")
        os.utime(tmp_path / "lock.json", (1, 1))
    # As if each were another process of this host.
    locks = [RunLock(tmp_path / "lock.json") for _ in range(8)]
    for index, lock in enumerate(locks):
        lock.owner = replace(lock.owner, pid=os.getpid(), host=f"node{index}")
    outcomes: list[bool] = []
    together = threading.Barrier(len(locks))

    def acquire(lock: RunLock) -> None:
        together.wait()
        try:
            lock.acquire()
            outcomes.append(True)
        except LaunchError:
            outcomes.append(False)

    for lock in locks:
        lock._wait = lambda _: os.utime(tmp_path / "lock.json")
    threads = [threading.Thread(target=acquire, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count(True), outcomes.count(False)) == (1, len(locks) - 1)
    for lock in locks:
        lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_a_person_removed_comes_back(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "lock.json")
    lock.acquire()
    lock.path.unlink()
    lock.beat()
    assert read_owner(lock.path) == lock.owner
    lock.release()
