"""overt/errors.py: what a misspelt word was meant to be, and which errors let a run save."""

import errno
import os
from pathlib import Path

import pytest

from overt import errors
from overt.errors import (
    ConfigError,
    Interrupted,
    OvertError,
    Preempted,
    StopError,
    exit_code_of,
    file_problem,
    nearest,
    need_folder,
)

KEYS = ["training.num_steps", "training.num_epochs", "optimizer.lr", "model.depth", "data.root"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("training.num_stps", "training.num_steps"),
        ("optimizer.num_steps", "training.num_steps"),  # the right key in the wrong section
        ("num_steps", "training.num_steps"),
        ("model.dept", "model.depth"),
        ("data.rooot", "data.root"),
    ],
)
def test_the_nearest_key_is_proposed(word: str, meant: str) -> None:
    assert nearest(word, KEYS) == f" (did you mean {meant}?)"


@pytest.mark.parametrize("word", ["training.zebra", "something", ""])
def test_nothing_is_proposed_where_nothing_is_near(word: str) -> None:
    assert nearest(word, KEYS) == ""
    assert nearest("training.num_steps", []) == ""


def test_a_section_alone_is_not_alike() -> None:
    assert nearest("training.depth", KEYS) == " (did you mean model.depth?)"


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"^output_dir=.*file is a file; name a new"):
        need_folder("output_dir", file)
    assert need_folder("output_dir", tmp_path) == tmp_path
    assert need_folder("output_dir", tmp_path / "new") == tmp_path / "new"


def test_every_error_is_one_that_the_command_line_prints() -> None:
    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert all(issubclass(kind, OvertError) for kind in kinds)
    # Raised on all ranks at one step: these save before they leave.
    stops = {kind.__name__ for kind in kinds if issubclass(kind, StopError)}
    alone = {"StoppedAtStart"}  # of one rank, before there is anything to save
    asked = {"Preempted", "Interrupted"}
    assert stops - alone - asked == {"StopError", "NonFiniteError", "NonFiniteWeightsError"}
    assert asked < stops
    assert (exit_code_of(Preempted()), exit_code_of(Interrupted())) == (85, 130)


def test_a_folder_below_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert need_folder("--output", tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"--output=.*is a file"):
            need_folder("--output", path)
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(ConfigError, match="--output="):
            need_folder("--output", tmp_path / name)


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOSPC, "`df -h`"), (errno.EDQUOT, "`quota -s`")]
)
def test_a_full_disk_is_explained_with_and_without_a_name(code: int, remedy: str) -> None:
    words = os.strerror(code)
    unnamed = OSError(code, words)  # as write and close raise it
    foreign = Exception(f"Error while serializing: I/O error: {words} (os error {code})")
    closing = RuntimeError("unexpected pos 64 vs 0")  # of an archive whose last write failed
    closing.__context__ = unnamed
    for error in (unnamed, foreign, closing):
        problem = str(file_problem(error))
        assert problem.startswith(f"{words}, on a disk that the system does not name. Free space")
        assert remedy in problem
    named = file_problem(OSError(code, words, "there/file"))
    assert str(named).startswith(f"{words}, for there/file. Free space")


def test_other_errors_are_not_explained_as_those_of_files() -> None:
    hidden = ValueError("wrong")
    hidden.__context__, hidden.__suppress_context__ = OSError(errno.ENOSPC, "full"), True
    for error in (hidden, ValueError("Symlink loop"), OSError(errno.EIO, "broken"), OSError("odd")):
        assert file_problem(error) is None
