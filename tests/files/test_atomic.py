"""overt/files/atomic.py: complete or not at all, also where several processes make the same."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overt.files import atomic
from overt.files.atomic import (
    MadeMeanwhileError,
    hidden_name,
    is_unfinished,
    new_file,
    new_folder,
    remove_left_overs,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_appears_once_it_is_complete(durable: bool, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    with new_file(target, durable=durable) as hidden:
        hidden.write_text("first")
        assert not target.exists()
        assert is_unfinished(hidden)
    with new_file(target) as hidden:
        hidden.write_text("second")
        assert target.read_text() == "first"
    assert target.read_text() == "second"
    assert names(target.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def write_half() -> None:
        with new_file(tmp_path / "file") as hidden:
            hidden.write_text("half")
            raise error

    def fill_half() -> None:
        with new_folder(tmp_path / "folder") as hidden:
            (hidden / "half").write_text("half")
            raise error

    (tmp_path / "file").write_text("old")
    for make in (write_half, fill_half):
        with pytest.raises(error):
            make()
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_of_two_folders_the_first_stays(tmp_path: Path) -> None:
    target = tmp_path / "set"
    target.mkdir()  # an empty one is taken over

    def make_both() -> None:
        with new_folder(target) as slow:
            with new_folder(target) as fast:
                (fast / "content").write_text("fast")
            (slow / "content").write_text("slow")

    with pytest.raises(MadeMeanwhileError, match="created by another process"):
        make_both()
    assert (target / "content").read_text() == "fast"
    assert names(tmp_path) == ["set"]


def test_a_file_of_that_name_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("mine")
    with pytest.raises(MadeMeanwhileError), new_folder(tmp_path / "set"):
        pass
    assert (tmp_path / "set").read_text() == "mine"


def write_many(target: Path, rounds: int) -> None:
    for number in range(rounds):
        with new_file(target) as hidden:
            hidden.write_text(f"{os.getpid()} {number} " * 1000)
        lines = target.read_text().split()
        assert len(lines) == 2000
        assert len(set(lines)) <= 2  # all of it by one process, in one round


def test_two_processes_write_the_same_file(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    run_processes(write_many, 2, tmp_path / "file", 100)
    assert [name for name in names(tmp_path) if is_unfinished(Path(name))] == []


def of_another(target: Path, process: int, token: str = "0badc0de") -> Path:
    """A hidden name as another process would choose it."""
    name = re.sub(r"-\d+-[0-9a-f]{8}-(\d+\.partial)$", rf"-{process}-{token}-\1",
                  hidden_name(target).name)  # fmt: skip
    return target.with_name(name)


def test_only_what_the_dead_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    target = tmp_path / "set"
    gone = [of_another(target, ended.pid), of_another(target, os.getpid())]
    gone[0].mkdir()
    (gone[0] / "half").write_text("half")
    gone[1].write_text("half")
    kept = [
        hidden_name(target),  # of this process
        of_another(target, os.getppid()),  # which lives
        target.with_name(".download.partial"),  # not ours
        target.with_name("notes.partial"),
    ]
    for path in kept:
        path.write_text("")
        os.utime(path, (0, 0))
    remove_left_overs(tmp_path)
    assert names(tmp_path) == sorted(path.name for path in kept)

    monkeypatch.setattr(atomic.socket, "gethostname", lambda: "elsewhere")
    young = of_another(target, 1)
    young.write_text("")
    monkeypatch.undo()
    remove_left_overs(tmp_path)
    assert young.exists()
    long_ago = time.time() - 2 * 86400
    os.utime(young, (long_ago, long_ago))
    remove_left_overs(tmp_path)
    assert not young.exists()
    remove_left_overs(tmp_path / "nowhere")
