"""Names in manifests and packs cannot lead out of their folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from overt.checkpoint import storage
from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.manifest import MANIFEST, hash_of, verify
from overt.checkpoint.tensor_files import checksum_file
from overt.data.images.folder import ImageFolder
from overt.data.images.packed import PackedImages, pack_images
from overt.data.tracking import packed
from overt.errors import CheckpointError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    manager = CheckpointManager(tmp_path / "checkpoints", metric_name=None)
    return manager.save_checkpoint(0, nn.Linear(2, 2), step=1)


def add_to_manifest(folder: Path, name: str, target: Path) -> None:
    """List a file with its true size and sum, and sign the manifest anew."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    sum_of = checksum_file(target)
    manifest["files"][name] = {"size": target.stat().st_size, "crc32": sum_of}
    manifest["sha256"] = hash_of(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../secret", "{root}/secret", "inner/../../secret", ".."])
def test_a_manifest_cannot_name_a_file_elsewhere(
    name: str, checkpoint: Path, tmp_path: Path
) -> None:
    secret = checkpoint.parent / "secret"
    secret.write_text("mine")
    add_to_manifest(checkpoint, name.format(root=checkpoint.parent), secret)
    assert "outside the folder" in str(verify(checkpoint))
    with pytest.raises(CheckpointError, match="outside the folder"):
        CheckpointManager(checkpoint.parent).load_checkpoint(checkpoint, nn.Linear(2, 2))
    assert secret.read_text() == "mine"


def test_a_link_is_no_file_of_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / "model.safetensors"
    elsewhere = tmp_path / "weights"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert "model.safetensors: missing" in str(verify(checkpoint))


def test_a_link_is_no_checkpoint_and_is_not_deleted_through(checkpoint: Path) -> None:
    link = checkpoint.with_name("step_00000099")
    link.symlink_to(checkpoint)
    stored, broken = storage.scan(checkpoint.parent)
    assert [entry.path for entry in stored] == [checkpoint]
    assert broken == []
    left = checkpoint.with_name(".overt-writing-host-1-00000000-x")
    left.symlink_to(checkpoint)
    storage.clean_left_overs(checkpoint.parent)
    assert verify(checkpoint).good


def test_names_in_packed_tracks_are_never_paths(tmp_path: Path) -> None:
    """Entries are read into memory by name; nothing is unpacked."""
    file = tmp_path / "pack" / "0001.npz"
    file.parent.mkdir()
    frame = np.zeros((2, 3, 3), np.uint8)
    np.savez(
        file,
        coords=np.zeros((1, 1, 2), np.float32),
        occluded=np.zeros((1, 1), bool),
        frame_000=frame,
        **{"../outside": frame, "/outside": frame, "frame_/../../outside": frame},
    )
    before = sorted(tmp_path.rglob("*"))
    assert len(packed.read_tracks(file).coords_xy) == 1
    assert packed.read_frames(file, [0]).shape == (1, 3, 2, 3)
    assert sorted(tmp_path.rglob("*")) == before


def test_names_in_packed_images_are_never_paths(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(folder / "a..%2f..%2fx.png")
    pack_images(ImageFolder(tmp_path / "images"), tmp_path / "pack")
    before = sorted(tmp_path.rglob("*"))
    assert PackedImages(tmp_path / "pack").read(0)[0].shape == (3, 4, 4)
    assert sorted(tmp_path.rglob("*")) == before
