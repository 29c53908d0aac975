"""Which images a folder holds, at any depth, and of which class: the first folder below the root.

Made for millions of files: one pass of os.scandir, and names in two arrays instead of a list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from overt.data.image_decode import SUFFIXES
from overt.errors import DataError

UNLABELLED = -1
_SPLITS = {"train", "val", "valid", "validation", "test"}


class Names(Sequence[str]):
    """Strings behind one another in one array: small, and quick to send to a loader process."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.text, self.ends = text, ends  # bytes of all names, and where each of them ends

    @classmethod
    def pack(cls, names: Iterable[str]) -> Names:
        # File names are bytes and need not be text: what is not comes back as it was.
        parts = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # from the end where negative, IndexError beyond it
        start = self.ends[place - 1] if place else 0
        return self.text[start : self.ends[place]].tobytes().decode("utf-8", "surrogateescape")


class Listing(NamedTuple):
    """The images of a folder, in an order that depends on their names only."""

    names: Names  # below the root, with forward slashes
    labels: NDArray[np.int64]  # (n,) place in `classes`, or UNLABELLED
    classes: tuple[str, ...]


def list_images(root: Path | str, labelled: bool = True) -> Listing:
    """List the images below `root`; hidden files and folders are left out.

    With labels the sorted folders in `root` are the classes, and images lie in them at any depth;
    without, images may lie anywhere and there are no classes.
    """
    top = os.fspath(root)
    if not os.path.isdir(top):
        found = "is a file" if os.path.exists(top) else "does not exist"
        raise DataError(f"{top} {found}; a folder of images is needed. {_layout(top)}")
    folders, loose, others = _scan(top, "", _real_path(top))
    if not labelled:
        names, passed = _walk(top, folders)
        if not names and not loose:
            raise DataError(_nothing_found(top, others + passed))
        everything = Names.pack(sorted(loose + names))
        return Listing(everything, np.full(len(everything), UNLABELLED, np.int64), ())
    return _list_classes(top, sorted(folders), loose, others)


def _list_classes(top: str, classes: list[str], loose: list[str], others: list[str]) -> Listing:
    if classes and set(classes) <= _SPLITS:
        raise DataError(
            f"{top}: its folders are {', '.join(classes)}: splits, not classes. Point to one of "
            f"them, such as {os.path.join(top, classes[0])}."
        )
    names: list[str] = []
    counts: list[int] = []
    for folder in classes:
        own, passed = _walk(top, [folder])
        names += sorted(own)
        counts.append(len(own))
        others = others + passed[:100]
    if not names and not loose:
        raise DataError(_nothing_found(top, others))
    if loose:
        raise DataError(
            f"{top}: {_some(loose, 'image')} in no class folder. {_layout(top)} Or read the set "
            "without labels."
        )
    empty = [folder for folder, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise DataError(
            f"{top}: {_some(empty, 'class folder')} without an image ({', '.join(SUFFIXES)}). Fill "
            "or remove each, so that no class is silently missing."
        )
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return Listing(Names.pack(names), labels, tuple(classes))


def _walk(top: str, folders: Iterable[str]) -> tuple[list[str], list[str]]:
    """All images in these folders below `top` at any depth, and all files that are none."""
    names: list[str] = []
    others: list[str] = []
    # A linked folder leads elsewhere, or back up: the real paths above tell a circle.
    waiting = [(folder, _real_path(os.path.join(top, folder))) for folder in folders]
    while waiting:
        folder, real = waiting.pop()
        inner, images, passed = _scan(top, folder, real)
        names += images
        others += passed
        waiting += [(name, _real_path(os.path.join(top, name))) for name in inner]
    return names, others


def _scan(top: str, folder: str, real: str) -> tuple[list[str], list[str], list[str]]:
    """Folders, images and other files directly in a folder, as names below `top`."""
    folders: list[str] = []
    images: list[str] = []
    others: list[str] = []
    prefix = f"{folder}/" if folder else ""
    try:
        with os.scandir(os.path.join(top, folder)) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if entry.is_dir():
                    if entry.is_symlink() and _contains(_real_path(entry.path), real):
                        raise DataError(
                            f"{entry.path}: this link leads to a folder that it lies in, so its "
                            "images would be found again and again. Remove it."
                        )
                    folders.append(prefix + name)
                elif name.lower().endswith(SUFFIXES):
                    images.append(prefix + name)
                else:
                    others.append(prefix + name)
    except OSError as error:
        raise DataError(f"{os.path.join(top, folder)}: {error.strerror}.") from error
    return folders, images, others


def _real_path(path: str) -> str:
    return os.path.realpath(path)


def _contains(folder: str, inner: str) -> bool:
    return os.path.commonpath([folder, inner]) == folder


def _some(names: Sequence[str], noun: str) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({shown})"


def _layout(top: str) -> str:
    return (
        f"Expected is {top}/CLASS/.../IMAGE with one folder for each class, images as "
        f"{', '.join(SUFFIXES)}; `overt data images {top}` makes a synthetic set."
    )


def _nothing_found(top: str, others: Sequence[str]) -> str:
    found = _some(others, "other file") if others else "nothing else"
    return f"{top}: no image at any depth, and {found}. {_layout(top)}"
