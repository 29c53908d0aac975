import errno
import json
import logging
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from overt.checkpoint import storage
from overt.checkpoint.storage import verify, write_folder
from overt.checkpoint.tensor_files import Bytes
from overt.errors import CheckpointError

FILES = {"a.bin": b"first" * 1000, "b.json": b"{}", "empty": b""}


def write(directory: Path, name: str, serial: int, files=FILES) -> Path:
    contents = {file: Bytes(data) for file, data in files.items()}
    return write_folder(directory, name, contents, {"serial": serial, "step": serial}).path


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_folder_holds_what_was_given_and_a_manifest(tmp_path):
    folder = write(tmp_path, "step_00000001", 1)
    assert {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name in FILES
    } == FILES
    manifest = storage.read_manifest(folder)
    assert manifest["step"] == 1
    assert manifest["versions"].keys() >= {"python", "torch", "overt"}
    assert verify(folder) == storage.Verification()
    assert visible(tmp_path) == ["step_00000001"]


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


def test_an_extra_file_is_reported_and_harmless(tmp_path):
    folder = write(tmp_path, "step_00000001", 1)
    (folder / "notes.txt").write_text("mine")
    found = verify(folder)
    assert found.extra == ["notes.txt"]
    assert found.good
    assert "notes.txt" in str(found)
    assert storage.newest_good(tmp_path) == folder


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "..", "sub/file"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path, name):
    (tmp_path / "outside").write_bytes(b"secret")
    folder = write(tmp_path, "step_00000001", 1)
    manifest = storage.read_manifest(folder)
    manifest["files"][name] = {"size": 6, "crc32": "0"}
    manifest["sha256"] = storage._manifest_hash(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert any("outside the folder" in problem for problem in verify(folder).broken)


def test_a_later_format_is_refused_with_the_fix(tmp_path):
    folder = write(tmp_path, "step_00000001", 1)
    manifest = {**storage.read_manifest(folder), "format": 99}
    manifest["sha256"] = storage._manifest_hash(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"format 99.*reads format 1"):
        storage.read_manifest(folder)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync", "rename", "mkdir"])
def test_a_failing_disk_leaves_the_last_good_one_and_says_what_to_do(
    tmp_path, monkeypatch, call, code
):
    good = write(tmp_path, "step_00000001", 1)

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(CheckpointError, match="step_00000002") as caught:
            write(tmp_path, "step_00000002", 2)
    if code != errno.EIO:
        assert "needs 0.0 MB" in str(caught.value)
        assert "are free there" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "unharmed" in str(caught.value)
    assert visible(tmp_path) == ["step_00000001"]
    assert verify(good).good
    assert write(tmp_path, "step_00000002", 2).exists()


def test_a_limit_on_file_sizes_is_met_like_a_full_disk(tmp_path):
    good = write(tmp_path, "step_00000001", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(CheckpointError, match=r"needs 1.0 MB.*ulimit -f"):
            write(tmp_path, "step_00000002", 2, {"a": b"x" * (1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert visible(tmp_path) == ["step_00000001"]
    assert verify(good).good


def test_newest_is_the_last_saved_not_the_highest_step(tmp_path):
    write(tmp_path, "step_00000009", 1)
    newer = write(tmp_path, "step_00000005", 2)
    assert storage.newest_good(tmp_path) == newer


def test_a_name_in_use_is_never_replaced(tmp_path):
    write(tmp_path, "step_00000001", 1)
    assert storage.free_name(tmp_path, "step_00000001") == "step_00000001-2"
    write(tmp_path, "step_00000001-2", 2)
    assert storage.free_name(tmp_path, "step_00000001") == "step_00000001-3"
    assert [one.serial for one in storage.scan(tmp_path)[0]] == [1, 2]


def test_other_folders_are_not_taken_for_checkpoints(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "step_1.broken").mkdir()
    (tmp_path / "step_2").write_text("a file")
    assert storage.scan(tmp_path) == ([], [])
    assert storage.scan(tmp_path / "absent") == ([], [])


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
