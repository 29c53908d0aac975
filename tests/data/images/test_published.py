"""CIFAR-10, CIFAR-100, STL-10 and Tiny-ImageNet in the layouts of their publishers."""

import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overt.commands.data import main
from overt.data.images.packed import PackedImages
from overt.data.images.published import (
    CIFAR10_CLASSES,
    Facts,
    Split,
    channel_means,
    check_facts,
    list_tiny_imagenet,
    read_cifar10,
    read_cifar100,
    read_stl10,
    write_file_packs,
    write_packs,
)
from overt.errors import DataError

COUNT = 4  # images of a batch
PARTS = {f"data_batch_{number}": number for number in range(1, 6)} | {"test_batch": 9}


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) and labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (COUNT, 32, 32, 3), np.uint8), rng.integers(0, 10, COUNT)


def planes(images: np.ndarray) -> np.ndarray:
    """Rows of red, green and blue, as both versions of CIFAR store them."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def write_python(folder: Path) -> None:
    for name, seed in PARTS.items():
        images, labels = batch(seed)
        content = {"data": planes(images), "labels": labels.tolist(), "batch_label": name}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_binary(folder: Path) -> None:
    for name, seed in PARTS.items():
        images, labels = batch(seed)
        rows = np.concatenate([labels[:, None].astype(np.uint8), planes(images)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_png(folder: Path) -> None:
    for name, seed in PARTS.items():
        images, _ = batch(seed)
        Image.fromarray(images.reshape(COUNT, 1024, 3)).save(folder / f"{name}.png")
    train = np.concatenate([batch(seed)[1] for seed in range(1, 6)])
    (folder / "train_lables.json").write_text(json.dumps(train.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(batch(9)[1].tolist()))


@pytest.mark.parametrize("write", [write_python, write_binary, write_png])
@pytest.mark.parametrize("archived", [False, True])
def test_every_version_of_cifar10_holds_the_same(write, archived, tmp_path):
    folder = tmp_path / "cifar-10"
    folder.mkdir()
    write(folder)
    source = folder
    if archived:
        source = tmp_path / "cifar.tar.gz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(folder, "package")
    splits, classes = read_cifar10(source)
    assert classes == CIFAR10_CLASSES
    assert (splits["train"].images == np.concatenate([batch(n)[0] for n in range(1, 6)])).all()
    assert (splits["test"].images == batch(9)[0]).all()
    assert (splits["test"].labels == batch(9)[1]).all()


def test_packs_hold_the_pixels(tmp_path):
    write_binary(tmp_path)
    splits, classes = read_cifar10(tmp_path)
    write_packs(splits, classes, tmp_path / "out")
    pack = PackedImages(tmp_path / "out" / "test")
    assert (pack.is_raw, pack.classes) == (True, CIFAR10_CLASSES)
    pixels, label = pack.read(2)
    assert (pixels.permute(1, 2, 0).numpy() == batch(9)[0][2]).all()
    assert label == batch(9)[1][2]
    with pytest.raises(DataError, match="exists"):
        write_packs(splits, classes, tmp_path / "out")


def test_the_command_refuses_an_incomplete_set(tmp_path):
    write_binary(tmp_path)
    with pytest.raises(DataError, match=r"20 images in the part train, but the published set"):
        main(["cifar10", str(tmp_path), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(DataError, match=r"not CIFAR-10; expected .* It holds notes"):
        main(["cifar10", str(tmp_path / "other"), str(tmp_path / "out")])
    with pytest.raises(DataError, match="does not exist"):
        main(["cifar10", str(tmp_path / "none"), str(tmp_path / "out")])


def test_counts_classes_and_colors_are_checked():
    images = np.full((4, 2, 2, 3), 51, np.uint8)
    labels = np.array([0, 0, 1, 1])
    assert channel_means(images) == pytest.approx((0.2, 0.2, 0.2))
    facts = Facts({"train": 4}, 2, (0.2, 0.2, 0.2))
    check_facts({"train": Split(images, labels)}, facts, "here")
    with pytest.raises(DataError, match=r"\[3, 1\] images of its classes"):
        check_facts({"train": Split(images, labels * 0 + [0, 0, 0, 1])}, facts, "here")
    images[..., 0] += 4
    with pytest.raises(DataError, match=r"mean colors .* 0.2157 0.2000 0.2000"):
        check_facts({"train": Split(images, labels)}, facts, "here")


def damage(folder: Path, what: str) -> None:
    if what == "cut":
        file = folder / "test_batch.bin"
        file.write_bytes(file.read_bytes()[:-5])
    elif what == "labels":
        (folder / "train_lables.json").write_text("[1, 2")
    elif what == "short":
        (folder / "train_lables.json").write_text("[1, 2]")
    elif what == "png":
        (folder / "data_batch_3.png").write_bytes(b"no picture")
    elif what == "hostile":
        (folder / "data_batch_2").write_bytes(pickle.dumps(Path.cwd))
    elif what == "keys":
        (folder / "data_batch_2").write_bytes(pickle.dumps({"pixels": 1}))


@pytest.mark.parametrize(
    ("write", "what", "message"),
    [
        (write_binary, "cut", "not a multiple of 3073"),
        (write_png, "labels", "not a JSON list"),
        (write_png, "short", "20 images, but 2 labels"),
        (write_png, "png", "data_batch_3.png is not a PNG"),
        (write_python, "hostile", "refused"),
        (write_python, "keys", "a dictionary with data and labels"),
    ],
)
def test_damaged_files_are_named(write, what, message, tmp_path):
    write(tmp_path)
    damage(tmp_path, what)
    with pytest.raises(DataError, match=message):
        read_cifar10(tmp_path)


def test_both_versions_of_cifar100_take_the_fine_labels(tmp_path):
    images, labels = batch(3)
    python, binary = tmp_path / "python", tmp_path / "binary"
    python.mkdir()
    binary.mkdir()
    rows = np.concatenate(
        [np.full((COUNT, 1), 7, np.uint8), labels[:, None].astype(np.uint8), planes(images)], axis=1
    )
    for part in ("train", "test"):
        content = {"data": planes(images), "fine_labels": labels.tolist(), "coarse_labels": [7] * 4}
        (python / part).write_bytes(pickle.dumps(content, protocol=2))
        (binary / f"{part}.bin").write_bytes(rows.tobytes())
    (python / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bear"]}))
    (binary / "fine_label_names.txt").write_text("apple\nbear\n")
    for folder in (python, binary):
        splits, classes = read_cifar100(folder)
        assert classes == ("apple", "bear")
        assert (splits["train"].images == images).all()
        assert (splits["test"].labels == labels).all()
    (python / "meta").unlink()
    with pytest.raises(DataError, match="not CIFAR-100"):
        read_cifar100(python)


def test_stl10_is_stored_by_columns(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), np.uint8)
    content = np.ascontiguousarray(images.transpose(0, 3, 2, 1)).tobytes()
    for part in ("train", "test", "unlabeled"):
        (tmp_path / f"{part}_X.bin").write_bytes(content)
    for part in ("train", "test"):
        (tmp_path / f"{part}_y.bin").write_bytes(bytes([1, 10]))
    (tmp_path / "class_names.txt").write_text("airplane\nbird\n")
    splits, classes = read_stl10(tmp_path)
    assert classes == ("airplane", "bird")
    assert (splits["train"].images == images).all()
    assert splits["test"].labels.tolist() == [0, 9]
    assert splits["unlabeled"].labels.tolist() == [-1, -1]
    (tmp_path / "train_X.bin").write_bytes(content[:-1])
    with pytest.raises(DataError, match="truncated"):
        read_stl10(tmp_path)


def test_tiny_imagenet_finds_the_labels_of_its_validation_images(tmp_path):
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (10, 20, 30)).save(stream, "JPEG")
    for wnid in ("n02", "n01"):
        folder = tmp_path / "train" / wnid / "images"
        folder.mkdir(parents=True)
        (folder / f"{wnid}_0.JPEG").write_bytes(stream.getvalue())
        (folder / f"._{wnid}_0.JPEG").write_bytes(b"hidden, as macOS writes")
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "val" / "images").mkdir(parents=True)
    (tmp_path / "val" / "images" / "val_0.JPEG").write_bytes(stream.getvalue())
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t3\t3\n")
    packs = write_file_packs(list_tiny_imagenet(tmp_path), tmp_path / "out")
    assert (packs["train"].images, packs["test"].images) == (2, 1)
    assert PackedImages(tmp_path / "out" / "train").classes == ("n01", "n02")
    pack = PackedImages(tmp_path / "out" / "test")
    assert pack.classes[pack.read(0)[1]] == "n02"
    (tmp_path / "val" / "val_annotations.txt").write_text("../../secret\tn02\n")
    with pytest.raises(DataError, match="does not name an image"):
        list_tiny_imagenet(tmp_path)
    with pytest.raises(DataError, match="not Tiny-ImageNet"):
        list_tiny_imagenet(tmp_path / "val")
