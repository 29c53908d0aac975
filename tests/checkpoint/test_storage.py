"""The folder of a run's checkpoints: finding, links, pins and what the dead left."""

import logging
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from overt.checkpoint import storage
from overt.checkpoint.manifest import verify
from tests.checkpoint.small_folders import visible, write


def truncate(folder):
    os.truncate(folder / "a.bin", 4999)


def change(folder):
    with (folder / "a.bin").open("r+b") as file:
        file.seek(2500)
        file.write(b"F")


def remove(folder):
    (folder / "b.json").unlink()


def link(folder):
    (folder / "empty").unlink()
    (folder / "empty").symlink_to("/dev/null")


def cut_manifest(folder):
    os.truncate(folder / "manifest.json", 100)


def change_manifest(folder):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"step": 2', '"step": 3'))


def remove_manifest(folder):
    (folder / "manifest.json").unlink()


DAMAGES = [truncate, change, remove, link, cut_manifest, change_manifest, remove_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_is_found_moved_aside_and_the_one_before_used(tmp_path, caplog, damage):
    good = write(tmp_path, "step_00000001", 1)
    bad = write(tmp_path, "step_00000002", 2)
    damage(bad)
    assert not verify(bad).good
    left = visible(bad)
    with caplog.at_level(logging.WARNING):
        assert storage.newest_good(tmp_path) == good
    assert "step_00000002 is broken" in caplog.text
    assert visible(tmp_path / "step_00000002.broken") == left
    assert not bad.exists()


def test_quarantine_never_replaces_an_earlier_one(tmp_path):
    for serial in (1, 2):
        truncate(write(tmp_path, "step_00000001", serial))
        assert storage.newest_good(tmp_path) is None
    assert visible(tmp_path) == ["step_00000001.broken", "step_00000001.broken-2"]


def test_newest_is_the_last_saved_not_the_highest_step(tmp_path):
    write(tmp_path, "step_00000009", 1)
    newer = write(tmp_path, "step_00000005", 2)
    assert storage.newest_good(tmp_path) == newer


def test_a_name_in_use_is_never_replaced(tmp_path):
    write(tmp_path, "step_00000001", 1)
    assert storage.free_name(tmp_path, "step_00000001") == "step_00000001-2"
    write(tmp_path, "step_00000001-2", 2)
    assert storage.free_name(tmp_path, "step_00000001") == "step_00000001-3"
    assert [checkpoint.serial for checkpoint in storage.scan(tmp_path)[0]] == [1, 2]


def test_other_folders_are_not_taken_for_checkpoints(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "step_1.broken").mkdir()
    (tmp_path / "step_2").write_text("a file")
    assert storage.scan(tmp_path) == ([], [])
    assert storage.scan(tmp_path / "absent") == ([], [])


def copy_following_links(source, target):
    """As `scp -r` and `aws s3 sync` do it."""
    shutil.copytree(source, target, symlinks=False)
    return target


def test_folders_that_a_copy_made_of_links_make_room_for_links(tmp_path):
    (source := tmp_path / "source").mkdir()
    for step in (1, 2):
        write(source, f"step_{step:08d}", step)
    storage.point(source / "best", source / "step_00000001")
    storage.point(source / "latest", source / "step_00000002")
    copied = copy_following_links(source, tmp_path / "copied")
    assert visible(copied) == ["best", "latest", "step_00000001", "step_00000002"]
    storage.restore_copies(copied)
    assert visible(copied) == ["step_00000001", "step_00000002"]
    storage.point(copied / "latest", copied / "step_00000001")
    assert os.readlink(copied / "latest") == "step_00000001"


def test_a_copy_is_kept_where_it_is_all_that_is_left_of_a_checkpoint(tmp_path):
    (source := tmp_path / "source").mkdir()
    newest = write(source, "step_00000002", 2)
    for name in ("best", "best_oa", "latest"):
        storage.point(source / name, newest)
    copied = copy_following_links(source, tmp_path / "copied")
    change(copied / "step_00000002")
    truncate(copied / "latest")
    (copied / "best_of_all").mkdir()  # a user's own folder
    storage.restore_copies(copied)
    assert visible(copied) == [
        "best_of_all", "latest.broken", "step_00000002", "step_00000002-2"
    ]  # fmt: skip
    assert storage.newest_good(copied) == copied / "step_00000002-2"


def test_a_link_that_cannot_be_set_leaves_nothing_behind(tmp_path, caplog):
    (tmp_path / "latest" / "own").mkdir(parents=True)
    storage.point(tmp_path / "latest", write(tmp_path, "step_00000001", 1))
    storage.point(tmp_path / "latest", None)
    assert visible(tmp_path) == ["latest", "step_00000001"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_pointers_move_and_go(tmp_path):
    first, second = write(tmp_path, "step_00000001", 1), write(tmp_path, "step_00000002", 2)
    for target in (first, second):
        storage.point(tmp_path / "latest", target)
        assert os.readlink(tmp_path / "latest") == target.name
    storage.point(tmp_path / "latest", None)
    storage.point(tmp_path / "latest", None)
    assert visible(tmp_path) == ["step_00000001", "step_00000002"]


def test_left_overs_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, me, alive = socket.gethostname(), os.getpid(), os.getppid()
    gone = [
        f".overt-writing-{host}-{dead.pid}-0123abcd-step_00000001",
        f".overt-deleting-{host}-{dead.pid}-0123abcd-step_00000001-2",
        f".overt-writing-{host}-{me}-0123abcd-step_00000001",  # an earlier process with my number
        ".overt-writing-another-host-7-0123abcd-step_00000001",
    ]
    kept = [
        f".overt-writing-{host}-{alive}-0123abcd-step_00000001",
        storage.hidden_name("writing", "step_00000001"),
        ".overt-writing-another-host-8-0123abcd-step_00000001",
        ".overt-notes",
        ".cache",
    ]
    for name in gone + kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    os.utime(tmp_path / gone[-1], (0, 0))  # not touched for more than a day
    storage.clean_left_overs(tmp_path)
    assert visible(tmp_path) == sorted(kept)


def test_pinned_in_a_folder_that_cannot_be_written_only_warns(tmp_path, caplog, monkeypatch):
    folder = write(tmp_path, "step_00000001", 1)
    storage.pin(folder, "another run started from it")
    assert storage.is_pinned(folder)

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", fail)
    storage.pin(folder, "again")
    assert "may delete" in caplog.text
