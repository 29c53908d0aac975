"""ImageNet-1k and ImageNet-100 as they are distributed, listed with labels for packs.

Training images lie in folders of classes; the validation images of the publisher lie in one folder,
and their classes in a table or in one XML file each. This file does not import torch.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from overt.data.images.decode import SUFFIXES
from overt.data.images.published import ListedFiles, class_folders
from overt.errors import DataError

INNER = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # where train and val may lie
ANNOTATIONS = ("ILSVRC/Annotations/CLS-LOC/val", "Annotations/CLS-LOC/val")
TABLE = "LOC_val_solution.csv"  # ImageId,PredictionString; the latter begins with the class
XML_CLASS = re.compile(r"<name>\s*(n\d+)\s*</name>")
LAYOUTS = (
    "expected train/WNID/*.JPEG and val/WNID/*.JPEG; or ILSVRC/Data/CLS-LOC with train/WNID and a "
    f"flat val, and {TABLE} or Annotations/CLS-LOC/val/*.xml; or, for ImageNet-100, train.X1, "
    "train.X2, ... and val.X. Extract the archives and give their folder."
)


def list_imagenet(source: Path | str) -> dict[str, ListedFiles]:
    """List training and validation images of the first layout that fits; parts train and test."""
    top = Path(source)
    for root in (top / inner for inner in INNER):
        train = _folders(root, "train")
        val = _folders(root, "val")
        if train and val:
            break
    else:
        raise DataError(f"{top}: not ImageNet; {LAYOUTS}")
    classes = tuple(sorted({folder.name for part in train for folder in class_folders(part)}))
    numbers = {name: number for number, name in enumerate(classes)}
    if not classes:
        raise DataError(f"{train[0]}: no class folder; {LAYOUTS}")
    has_folders = any(class_folders(part) for part in val)
    class_of = _parent_name if has_folders else _flat_labels(top, root)
    return {
        "train": _listed(root, train, numbers, _parent_name),
        "test": _listed(root, val, numbers, class_of),
    }


def _folders(root: Path, part: str) -> list[Path]:
    """Return ROOT/PART, or the ROOT/PART.X1, PART.X2, ... of ImageNet-100."""
    if (root / part).is_dir():
        return [root / part]
    return sorted(path for path in root.glob(f"{part}.X*") if path.is_dir())


def _parent_name(path: Path) -> str:
    return path.parent.name


def _flat_labels(top: Path, root: Path) -> Callable[[Path], str]:
    """Return how the class of a validation image is found, by table or XML file."""
    tables = [folder / TABLE for folder in (top, root) if (folder / TABLE).is_file()]
    if tables:
        with tables[0].open(newline="", errors="replace") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2]
        table = {row[0]: row[1].split(" ", 1)[0] for row in rows}
        return lambda path: table.get(path.stem, "")

    annotations = [top / inner for inner in ANNOTATIONS]

    def from_xml(path: Path) -> str:
        for folder in (path.parent, *annotations):
            file = folder / f"{path.stem}.xml"
            if file.is_file():
                match = XML_CLASS.search(file.read_text(errors="replace"))
                return match[1] if match else ""
        return ""

    return from_xml


def _listed(
    root: Path, parts: list[Path], numbers: dict[str, int], class_of: Callable[[Path], str]
) -> ListedFiles:
    names, labels = [], []
    paths = sorted(path for part in parts for path in part.rglob("*"))
    for path in paths:
        is_hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if is_hidden or path.suffix.lower() not in SUFFIXES:
            continue
        name = class_of(path)
        if name not in numbers:
            raise DataError(
                f"{path}: its class {name!r} is not one of the {len(numbers)} class folders of the "
                f"training images. For a flat val, {TABLE} or the publisher's XML files name the "
                "classes; put one of them beside it."
            )
        names.append(str(path.relative_to(root)))
        labels.append(numbers[name])
    if not names:
        raise DataError(f"{parts[0]}: no image. Extract the archives completely.")
    return ListedFiles(root, names, np.array(labels, np.int64), tuple(numbers))
