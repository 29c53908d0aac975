"""Atomic writes: a folder is complete or absent, whatever the disk does."""

import errno
import os
import re
import resource
from pathlib import Path

import pytest
import torch

from overt.checkpoint.manifest import Verification, read_manifest, verify
from overt.checkpoint.storage import hidden_name
from overt.checkpoint.tensor_files import Bytes, TensorFile
from overt.checkpoint.writing import OtherShards, write_folder, write_shard, write_whole_file
from overt.errors import CheckpointError
from tests.checkpoint.small_folders import FILES, visible, write


def test_a_folder_holds_what_was_given_and_a_manifest(tmp_path):
    folder = write(tmp_path, "step_00000001", 1)
    assert {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name in FILES
    } == FILES
    manifest = read_manifest(folder)
    assert manifest["step"] == 1
    assert manifest["versions"].keys() >= {"python", "torch", "overt"}
    assert verify(folder) == Verification()
    assert visible(tmp_path) == ["step_00000001"]


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
        assert re.search(r"needs \d+\.\d kB", str(caught.value))
        assert "are free there" in str(caught.value)
        assert "keep fewer checkpoints" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "unharmed" in str(caught.value)
    assert visible(tmp_path) == ["step_00000001"]
    assert verify(good).good
    assert write(tmp_path, "step_00000002", 2).exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_export_that_fails_is_not_told_to_keep_fewer_checkpoints(
    tmp_path: Path, code: int
) -> None:
    def fail(hidden: Path) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.raises(CheckpointError, match=r"^weights\.pt could not be written") as caught:
        write_whole_file(tmp_path / "weights.pt", fail, 1_000_000)
    assert "checkpoints" not in str(caught.value)
    assert ("needs 1.0 MB" in str(caught.value)) == (code != errno.EIO)


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


def test_a_shard_that_does_not_come_leaves_nothing_behind(tmp_path: Path) -> None:
    content = TensorFile({"a": torch.ones(3)})
    others = OtherShards(("rank_00001.safetensors",), seconds=0.0)
    with pytest.raises(CheckpointError, match=r"rank_00001.safetensors.*shared file system"):
        write_folder(tmp_path, "step_1", {"rank_00000.safetensors": content}, {}, True, others)
    assert list(tmp_path.iterdir()) == []


def test_shards_and_notes_come_together(tmp_path: Path) -> None:
    content = TensorFile({"a": torch.ones(3)})
    hidden = tmp_path / hidden_name("writing", "step_1")
    write_shard(hidden, "rank_00001.safetensors", content)
    others = OtherShards(("rank_00001.safetensors",), seconds=0.0)
    files = {"rank_00000.safetensors": content, "state.json": Bytes(b"{}")}
    stored = write_folder(tmp_path, "step_1", files, {"serial": 1}, True, others)
    assert str(verify(stored.path)) == "good"
    assert stored.manifest["files"].keys() == {*files, "rank_00001.safetensors"}
