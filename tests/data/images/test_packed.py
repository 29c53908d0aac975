"""A pack reads as the folder it was made of; damage and half-written packs are noticed."""

import json
import os
import pickle
import shutil
import socket

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.images.folder import ImageFolder, ReadableImages
from overt.data.images.packed import PackedImages, pack_images
from overt.errors import DataError
from overt.files.atomic import MadeMeanwhileError
from overt.progress import told_to


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    root = tmp_path / "folder"
    for label in ("cat", "dög"):
        (root / label).mkdir(parents=True)
        for number, form in enumerate(("png", "jpg", "webp")):
            pixels = rng.integers(0, 256, (9 + 5 * number, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.{form}")
    Image.fromarray(rng.integers(0, 256, (1, 1), dtype=np.uint8)).save(root / "cat" / "dot.png")
    return ImageFolder(root)


def same(one, other):
    return all(
        torch.equal(one.read(index)[0], other.read(index)[0])
        and one.read(index)[1] == other.read(index)[1]
        for index in range(len(one))
    )


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pack_reads_as_its_folder(folder, tmp_path, raw, workers):
    counted = []
    with told_to(lambda what, done, total: counted.append(done)):
        packed = pack_images(folder, tmp_path / "pack", raw=raw, workers=workers)
    images = PackedImages(tmp_path / "pack")
    assert packed.images == len(images) == len(folder)
    assert counted == list(range(1, 8))
    assert list(images.names) == list(folder.names)
    assert images.classes == folder.classes
    assert same(images, folder)
    # in a loader process too, whether or not the file was mapped before
    assert same(pickle.loads(pickle.dumps(images)), folder)
    images.read(0)[0].zero_()  # pixels are the reader's own
    assert same(images, folder)
    with pytest.raises(IndexError):
        images.read(len(images))


@pytest.mark.parametrize("raw", [False, True])
def test_only_larger_images_shrink(folder, tmp_path, raw):
    pack_images(folder, tmp_path / "pack", side=12, raw=raw)
    images = PackedImages(tmp_path / "pack")
    for index in range(len(folder)):
        before, after = folder.read(index)[0], images.read(index)[0]
        short = min(before.shape[1:])
        if short <= 12:
            assert torch.equal(before, after)
        else:
            assert min(after.shape[1:]) == 12
            assert after.shape[2] / after.shape[1] == pytest.approx(30 / before.shape[1], rel=0.05)


def test_unreadable_images_are_left_out_and_named(folder, tmp_path):
    (folder.root / "cat" / "1.jpg").write_bytes(b"broken")
    packed = pack_images(folder, tmp_path / "pack")
    assert list(packed.left_out) == ["cat/1.jpg"]
    images = PackedImages(tmp_path / "pack")
    assert "cat/1.jpg" not in list(images.names)
    assert len(images) == 6
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    note = json.loads((tmp_path / "pack" / "pack.json").read_text())
    assert list(note["left_out"]) == ["cat/1.jpg"]


def test_nothing_readable(folder, tmp_path):
    for name in folder.names:
        (folder.root / name).write_bytes(b"broken")
    with pytest.raises(DataError, match="none of the 7 images"):
        pack_images(folder, tmp_path / "pack")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_a_pack_is_not_written_over(folder, tmp_path):
    pack_images(folder, tmp_path / "pack")
    with pytest.raises(DataError, match="exists"):
        pack_images(folder, tmp_path / "pack")


def test_an_interrupted_pack_leaves_nothing(folder, tmp_path):
    def interrupt(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    with told_to(interrupt), pytest.raises(KeyboardInterrupt):
        pack_images(folder, tmp_path / "pack")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
    # and what a killed process left behind does not stand in the way
    (tmp_path / f".pack.{socket.gethostname()}-{os.getpid()}-00000000-0.partial").mkdir()
    pack_images(folder, tmp_path / "pack")
    assert same(PackedImages(tmp_path / "pack"), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pack"]


def test_a_pack_that_another_process_wrote_meanwhile_is_kept(folder, tmp_path):
    def pack_as_well(what, done, total):
        if done == 3 and not (tmp_path / "other").exists():
            (tmp_path / "other").touch()
            pack_images(folder, tmp_path / "pack")

    expected = pytest.raises(MadeMeanwhileError, match="created by another process")
    with told_to(pack_as_well), expected:
        pack_images(folder, tmp_path / "pack", raw=True)
    assert same(PackedImages(tmp_path / "pack"), folder)
    assert not PackedImages(tmp_path / "pack").is_raw


@pytest.mark.parametrize("raw", [False, True])
def test_every_damaged_byte_is_noticed(folder, tmp_path, raw):
    pack_images(folder, tmp_path / "pack", raw=raw)
    path = tmp_path / "pack" / "data.bin"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, len(whole) - 1, *rng.integers(0, len(whole), 10)]:
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(broken)
        images = PackedImages(tmp_path / "pack")
        problems = []
        for index in range(len(images)):
            try:
                images.read(index)
            except DataError as error:
                problems.append((index, str(error)))
        ((index, message),) = problems
        assert images.names[index] in message
    assert len(ReadableImages(images).read(len(images) - 1)[0]) == 3


def test_a_cut_data_file_is_noticed_at_once(folder, tmp_path):
    pack_images(folder, tmp_path / "pack")
    path = tmp_path / "pack" / "data.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="truncated"):
        PackedImages(tmp_path / "pack")


@pytest.mark.parametrize("name", ["index.npz", "pack.json"])
def test_a_damaged_index_is_noticed_at_once(folder, tmp_path, name):
    pack_images(folder, tmp_path / "pack")
    path = tmp_path / "pack" / name
    for content in (path.read_bytes()[:-40], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=name):
            PackedImages(tmp_path / "pack")
    path.unlink()
    with pytest.raises(DataError, match=name):
        PackedImages(tmp_path / "pack")


def test_another_format_and_no_pack(folder, tmp_path):
    pack_images(folder, tmp_path / "pack")
    path = tmp_path / "pack" / "pack.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match="format 99"):
        PackedImages(tmp_path / "pack")
    shutil.rmtree(tmp_path / "pack")
    with pytest.raises(DataError, match="overt data pack"):
        PackedImages(tmp_path / "pack")
    with pytest.raises(DataError, match="not a pack of images"):
        PackedImages(folder.root)
