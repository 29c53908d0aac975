"""List the images of a folder, at any depth; the first folder below the root is the class.

Designed for millions of files: one pass of os.scandir, and names in two arrays instead of a list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from overt.data.images.decode import SUFFIXES
from overt.errors import DataError

UNLABELED = -1
_SPLITS = {"train", "val", "valid", "validation", "test"}


class Names(Sequence[str]):
    """Strings concatenated in one array: small, and quick to send to a loader process."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.text, self.ends = text, ends  # bytes of all names, and the end offset of each

    @classmethod
    def pack(cls, names: Iterable[str]) -> Names:
        # File names are bytes and need not be valid text; others are restored as they were.
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
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]  # from the end where negative, IndexError beyond it
        start = self.ends[position - 1] if position else 0
        return self.text[start : self.ends[position]].tobytes().decode("utf-8", "surrogateescape")


class Listing(NamedTuple):
    """The images of a folder, in an order that depends only on their names."""

    names: Names  # below the root, with forward slashes
    labels: NDArray[np.int64]  # (n,) index into `classes`, -1 without a class
    classes: tuple[str, ...]


class _Folder(NamedTuple):
    """A folder to scan, below the root."""

    name: str
    linked_at: tuple[str, ...]  # the real folders of the links on the way to it


def list_images(root: Path | str, labeled: bool = True) -> Listing:
    """List the images below `root`; hidden files and folders are ignored.

    With labels, the sorted folders in `root` are the classes and contain images at any depth;
    without, images may be anywhere and have no class.
    """
    top = os.fspath(root)
    if not os.path.isdir(top):
        state = "is a file" if os.path.exists(top) else "does not exist"
        raise DataError(f"{top} {state}; expected a folder of images. {_layout(top)}")
    folders, names, others = _scan(top, _Folder("", ()))
    folders.sort()
    if labeled and folders and {folder.name for folder in folders} <= _SPLITS:
        raise DataError(
            f"{top}: its folders are {', '.join(folder.name for folder in folders)}: splits, not "
            f"classes. Point to one of them, such as {os.path.join(top, folders[0].name)}."
        )
    loose, counts = list(names), []
    for folder in folders:
        images, passed = _walk(top, folder)
        names += sorted(images)
        counts.append(len(images))
        others += passed
    if not names:
        state = _first_names(others, "other file") if others else "nothing else"
        raise DataError(f"{top}: no image at any depth, and {state}. {_layout(top)}")
    if not labeled:
        return Listing(Names.pack(sorted(names)), np.full(len(names), UNLABELED, np.int64), ())
    if loose:
        raise DataError(
            f"{top}: {_first_names(loose, 'image')} outside of any class folder. {_layout(top)} Or "
            "read the set without labels (data.labeled=false; `overt features`: --unlabeled)."
        )
    classes = tuple(folder.name for folder in folders)
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise DataError(
            f"{top}: {_first_names(empty, 'class folder')} without an image "
            f"({', '.join(SUFFIXES)}). Fill or remove each, so that no class is silently missing."
        )
    return Listing(Names.pack(names), np.repeat(np.arange(len(classes)), counts), classes)


def _walk(top: str, folder: _Folder) -> tuple[list[str], list[str]]:
    """Return all images in a folder at any depth, and all files that are not images."""
    names: list[str] = []
    others: list[str] = []
    waiting = [folder]
    while waiting:
        inner, images, passed = _scan(top, waiting.pop())
        names += images
        others += passed
        waiting += inner
    return names, others


def _scan(top: str, folder: _Folder) -> tuple[list[_Folder], list[str], list[str]]:
    """Return folders, images and other files directly in a folder, as names below `top`."""
    folders: list[_Folder] = []
    images: list[str] = []
    others: list[str] = []
    path = os.path.join(top, folder.name)
    prefix = f"{folder.name}/" if folder.name else ""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if entry.is_dir():
                    linked_at = _follow(entry.path, path, folder) if entry.is_symlink() else ()
                    folders.append(_Folder(prefix + name, linked_at or folder.linked_at))
                elif name.lower().endswith(SUFFIXES):
                    images.append(prefix + name)
                else:
                    others.append(prefix + name)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from error
    return folders, images, others


def _follow(link: str, path: str, folder: _Folder) -> tuple[str, ...]:
    """Return the links followed so far, including this one; reject a cycle."""
    linked = (*folder.linked_at, os.path.realpath(path))
    target = os.path.realpath(link)
    if any(os.path.commonpath([target, visited]) == target for visited in linked):
        raise DataError(
            f"{link}: this link points to a folder above it, so its images would be listed again "
            "and again. Remove it."
        )
    return linked


def _first_names(names: Sequence[str], noun: str) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({shown})"


def _layout(top: str) -> str:
    return (
        f"Expected: {top}/CLASS/.../IMAGE with one folder for each class, images as "
        f"{', '.join(SUFFIXES)}; `overt data images FOLDER` makes a synthetic set, "
        "`overt data --help` lists published ones."
    )
