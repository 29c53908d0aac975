"""Read people from a detector's file: COCO results, COCO annotations, or boxes by picture name.

Masks are run lengths or polygons; of the 17 keypoints the twelve limb joints are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.images.decode import SUFFIXES
from overt.data.people.conventions import CONVENTIONS, limb_columns
from overt.data.people.detections import (
    FEWEST_KEYPOINTS,
    GOOD_SCORE,
    LEAST_PX,
    Array,
    Detection,
    Mask,
    checked,
    read_json,
)
from overt.errors import DataError

PICTURES = (*SUFFIXES, ".bmp", ".tif", ".tiff")  # a detector may have read another format
PERSON = "1"  # category_id in COCO
FARTHEST_PX = 1e6  # of a coordinate from the corner of the picture
MOST_CHARACTERS = 7  # of one count in a compressed mask: 35 bits
POINTS = len(CONVENTIONS["coco"])
LIMB_COLUMNS = limb_columns(CONVENTIONS["coco"], "COCO")

Polygons = list[NDArray[np.float64]]  # (N, 2) each
Numbered = Iterable[tuple[int, dict[str, Any]]]  # rows with their positions in the file


class Runs(NamedTuple):
    """A mask as run lengths, column by column, starting with background."""

    size: tuple[int, int]  # (height, width)
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """A person in a file."""

    index: int  # position in the file
    box: Array | None  # (4,)
    keypoints: Array | None  # (12, 3)
    outline: Runs | Polygons | None

    def detection(self, image_size: tuple[int, int]) -> Detection:
        """Return the person in a picture; a DataError says why it cannot show them.

        Keypoints and masks that determine no camera are ignored, as detectors write them for
        people who are hardly visible.
        """
        mask, keypoints = self.mask(image_size), self.keypoints
        if not _is_usable(Detection(mask=mask), image_size):
            mask = None
        if not _is_usable(Detection(keypoints=keypoints), image_size):
            keypoints = None
        if self.box is None and mask is None and keypoints is None:
            raise DataError(
                f"no bbox, no mask of at least {LEAST_PX} pixels, and fewer than "
                f"{FEWEST_KEYPOINTS} keypoints above {GOOD_SCORE}; give one of them"
            )
        return checked(Detection(self.box, mask, keypoints, self.index), image_size)

    def mask(self, image_size: tuple[int, int]) -> Mask | None:
        """Return the mask (H, W), if the file has one."""
        if self.outline is None:
            return None
        if not isinstance(self.outline, Runs):
            return fill_polygons(self.outline, image_size)
        if self.outline.size != image_size:
            raise DataError(
                f"its mask has the size {list(self.outline.size)}, the picture "
                f"{list(image_size)} (height, width); run the detector on this picture"
            )
        return decode_runs(self.outline)


def _is_usable(person: Detection, image_size: tuple[int, int]) -> bool:
    try:
        checked(person, image_size)
    except DataError:
        return False
    return True


def read_detections(path: Path, pictures: Sequence[Path]) -> list[list[Row]]:
    """Return the people of each picture; ignore crowds, other categories, and low scores.

    Pictures are matched by file name and as many of its folders as differ; else by stem, without
    leading zeros: an image_id of COCO is the number in the name.
    """
    title = f"--detections {path}"
    rows_of = _rows_by_name(read_json(path, "--detections"), title)
    names_of: dict[str, list[str]] = {}
    for name in rows_of:
        names_of.setdefault(_key(name), []).append(name)
    people: list[list[Row]] = []
    for picture in pictures:
        names = _nearest_names(names_of.get(_key(picture.name), []), picture)
        if len(names) > 1:
            raise DataError(
                f"{title}: {picture} may be {_some(names)}; rename it, or name the picture with "
                "its folders"
            )
        rows = rows_of[names[0]] if names else []
        people.append(
            [_read_row(row, index, f"{title}, {names[0]}, row {index}") for index, row in rows]
        )
    if not any(people):
        raise DataError(
            f"{title}: no person in {_some(list(map(str, pictures)))}; it has people in "
            f"{_some(list(rows_of))}, matched by file name"
        )
    return people


def _rows_by_name(content: Any, title: str) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Return the rows of people by the name of their picture."""
    file_names: dict[str, Any] = {}
    people = {PERSON}
    rows: Numbered
    if isinstance(content, dict) and "annotations" in content:
        rows = _numbered(content["annotations"], f"{title}, annotations")
        images = _numbered(content.get("images", []), f"{title}, images")
        file_names = {_id(image.get("id")): image.get("file_name") for _, image in images}
        named = list(_numbered(content.get("categories", []), f"{title}, categories"))
        if named:
            people = {_id(row.get("id")) for _, row in named if row.get("name") == "person"}
    elif isinstance(content, dict):
        rows = _simple_rows(content, title)
    else:
        rows = _numbered(content, title)
    rows_of: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    categories = set()
    for index, row in rows:
        category = _id(row.get("category_id", PERSON))
        categories.add(category)
        score = row.get("score", 1.0)
        if not isinstance(score, int | float):
            raise DataError(f"{title}, row {index}: score={_shown(score)} is not a number")
        if category not in people or row.get("iscrowd") or not score > GOOD_SCORE:
            continue
        name = row.get("file_name", file_names.get(_id(row.get("image_id")), row.get("image_id")))
        if not isinstance(name, str | int | float):
            raise DataError(
                f"{title}, row {index}: its picture is {_shown(name)}; expected a file_name, or "
                "an image_id"
            )
        rows_of.setdefault(_id(name), []).append((index, row))
    if not categories:
        raise DataError(f"{title}: no rows; expected people, each with image_id and bbox")
    if not rows_of:
        raise DataError(
            f"{title}: no person with a score above {GOOD_SCORE}; category_id is "
            f"{_some(sorted(categories))}, expected {_some(sorted(people)) or 'one named person'}"
        )
    return rows_of


def _numbered(rows: Any, title: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if not isinstance(rows, list):
        raise DataError(f"{title}: expected a list of objects, got {_shown(rows)}")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(
                f"{title}, row {index}: expected an object with image_id and bbox, got "
                f"{_shown(row)}; boxes alone are for --boxes, or an object of boxes by picture name"
            )
        yield index, row


def _simple_rows(content: dict[str, Any], title: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return rows of an object that has a list of boxes for each picture name."""
    for name, boxes in content.items():
        if not isinstance(boxes, list):
            raise DataError(
                f"{title}: expected COCO results, COCO annotations, or lists of boxes by picture "
                f"name; {_shown(name)} has {_shown(boxes)}"
            )
        for index, box in enumerate(boxes):
            yield index, {"file_name": name, "bbox": box}


def _id(value: Any) -> str:
    """Return an id as text; tables write whole numbers as 1.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _key(name: str) -> str:
    """Return what names of one picture have in common; an image_id may have dots, and no suffix."""
    path = _path(name)
    stem = path.stem if path.suffix.lower() in PICTURES else path.name
    return (stem.lstrip("0") or "0") if stem.isdecimal() else stem


def _path(name: str) -> Path:
    """Return the path of a name, which may have been written on Windows."""
    return Path(name.replace("\\", "/"))


def _nearest_names(names: list[str], picture: Path) -> list[str]:
    """Return the names that have most of their last parts in common with a picture."""

    def agreement(name: str) -> int:
        pairs = zip(reversed(_path(name).parts), reversed(picture.absolute().parts), strict=False)
        count = 0
        for part, other in pairs:
            if part != other:
                break
            count += 1
        return count

    most = max(map(agreement, names), default=0)
    return [name for name in names if agreement(name) == most]


def _read_row(row: dict[str, Any], index: int, title: str) -> Row:
    box = keypoints = outline = None
    if row.get("bbox") is not None:
        box = _numbers(row["bbox"], f"{title}: bbox").astype(np.float32)
        if box.shape != (4,):
            raise DataError(
                f"{title}: bbox has {_shown(row['bbox'])}; expected x, y, width, height"
            )
    if row.get("keypoints"):
        points = _numbers(row["keypoints"], f"{title}: keypoints")
        if points.size != 3 * POINTS:
            raise DataError(
                f"{title}: keypoints has {points.size} numbers; expected x, y and confidence of "
                f"COCO's {POINTS} points, {3 * POINTS} numbers"
            )
        keypoints = points.reshape(POINTS, 3)[LIMB_COLUMNS].astype(np.float32)
    if row.get("segmentation"):
        outline = _read_outline(row["segmentation"], f"{title}: segmentation")
    return Row(index, box, keypoints, outline)


def _read_outline(value: Any, title: str) -> Runs | Polygons:
    if isinstance(value, dict):
        return read_runs(value, title)
    if not isinstance(value, list):
        raise DataError(f"{title} is {_shown(value)}; expected polygons, or size and counts")
    polygons = []
    for part in value:
        polygon = _numbers(part, title)
        if polygon.ndim != 1 or polygon.size < 6 or polygon.size % 2:
            raise DataError(
                f"{title} has a polygon of {polygon.size} numbers; expected x and y of at least "
                "three corners in one list"
            )
        polygons.append(polygon.reshape(-1, 2))
    return polygons


def read_runs(value: dict[str, Any], title: str) -> Runs:
    """Return a mask of `size` and `counts`, which are a list, or compressed to text."""
    size, counts = value.get("size"), value.get("counts")
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(isinstance(side, int) and 0 < side <= FARTHEST_PX for side in size)
    ):
        raise DataError(f"{title}: size={_shown(size)}; expected [height, width] of the picture")
    if isinstance(counts, str):
        counts = decode_counts(counts, title)
    lengths = _numbers(counts, f"{title}: counts", largest=size[0] * size[1])
    are_whole = lengths.ndim == 1 and bool(((lengths >= 0) & (lengths % 1 == 0)).all())
    if not are_whole or lengths.sum() != size[0] * size[1]:
        raise DataError(
            f"{title}: counts add up to {lengths.sum():g}; expected whole run lengths that cover "
            f"{size[0]} x {size[1]} = {size[0] * size[1]} pixels"
        )
    return Runs((size[0], size[1]), lengths.astype(np.int64))


def decode_counts(text: str, title: str) -> list[int]:
    """Return run lengths of COCO's compressed text.

    Each character has five bits, the lowest first, and one that says whether more follow. From the
    fourth number on, a number is the difference to the last but one.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift >= 5 * MOST_CHARACTERS:
            raise DataError(
                f"{title}: counts has {_shown(text)}, which is not COCO's compressed text; write "
                "it again, or give counts as a list"
            )
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:  # negative
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    return counts


def decode_runs(runs: Runs) -> Mask:
    """Return the mask (H, W) of run lengths."""
    height, width = runs.size
    is_person = np.arange(len(runs.counts)) % 2 == 1
    return np.repeat(is_person, runs.counts).reshape(width, height).T


def fill_polygons(polygons: Polygons, image_size: tuple[int, int]) -> Mask:
    """Return the pixels (H, W) whose middles are inside one of the polygons."""
    height, width = image_size
    mask = np.zeros(image_size, np.bool_)
    for polygon in polygons:
        # From each crossing of a row with an edge, inside and outside are swapped.
        crossed = np.zeros((height, width + 1), np.bool_)
        for (x, y), (other_x, other_y) in zip(polygon, np.roll(polygon, -1, 0), strict=True):
            ends = np.ceil(np.sort([y, other_y]) - 0.5).clip(0, height).astype(np.int64)
            rows = np.arange(*ends)
            if len(rows) == 0:
                continue
            crossing = x + (rows + 0.5 - y) * ((other_x - x) / (other_y - y))
            crossed[rows, np.ceil(crossing - 0.5).clip(0, width).astype(np.int64)] ^= True
        mask |= np.logical_xor.accumulate(crossed, axis=1)[:, :width]
    return mask


def _numbers(value: Any, title: str, largest: float = FARTHEST_PX) -> NDArray[np.float64]:
    try:
        numbers = np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        raise DataError(f"{title} is {_shown(value)}; expected numbers") from None
    if not (np.abs(numbers) <= largest).all():  # NaN fails as well
        raise DataError(f"{title} has {_shown(value)}; expected finite numbers up to {largest:g}")
    return numbers


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
