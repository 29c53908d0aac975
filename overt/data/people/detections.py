"""Detections of people in a picture: boxes, masks and keypoints, and which of them can be used.

Letters: P people.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.images.masks import read_mask_file
from overt.data.people.conventions import LIMBS
from overt.errors import DataError
from overt.files.bounds import read_file

Array = NDArray[np.float32]
Mask = NDArray[np.bool_]
Masks = Path | str | NDArray[Any] | Sequence[Path | str]
Rows = Path | str | NDArray[Any]

GOOD_SCORE = 0.5  # detected people and keypoints with a higher confidence count
FEWEST_KEYPOINTS = 2  # that determine focal length and position at a given depth
LEAST_PX = 4  # extent of a person, below which a camera would be arbitrary
LARGEST_BOX = 10  # times the longer side of the picture


class Detection(NamedTuple):
    """What is known of one person in a picture."""

    box: Array | None = None  # (4,) x, y, width, height
    mask: Mask | None = None  # (H, W)
    keypoints: Array | None = None  # (12, 3) x, y, confidence
    row: int | None = None  # of a file


def collect(
    image_size: tuple[int, int],
    masks: Masks | None = None,  # (P, H, W) or files
    keypoints: Rows | None = None,  # (P, 12, 3) or a file
    boxes: Rows | None = None,  # (P, 4) or a file
) -> list[Detection]:
    """Return the people in a picture, each with what is given; nothing given is one person."""
    given: dict[str, list[Any]] = {}
    if boxes is not None:
        given["--boxes"] = list(read_boxes(boxes))
    if masks is not None:
        given["--mask"] = read_masks(masks)
    if keypoints is not None:
        given["--keypoints"] = list(read_keypoints(keypoints))
    counts = {name: len(parts) for name, parts in given.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise DataError(
            f"people: {listed}; give as many by each, in the same order, or remove an option"
        )
    people = []
    count = max(counts.values(), default=1)
    for number in range(count):
        box, mask, points = (
            given[name][number] if name in given else None
            for name in ("--boxes", "--mask", "--keypoints")
        )
        person = Detection(box, mask, points, None if box is None else number)
        try:
            people.append(checked(person, image_size))
        except DataError as error:
            raise DataError(f"person {number}: {error}" if count > 1 else str(error)) from None
    return with_boxes(people, image_size)


def checked(person: Detection, image_size: tuple[int, int]) -> Detection:
    """Return a person; a DataError says what determines no camera in a picture of this size."""
    check_picture(image_size, person.mask)
    if person.keypoints is not None:
        good_keypoints(person.keypoints, image_size)
    box = None if person.box is None else checked_box(person.box, image_size)
    return person._replace(box=box)


def with_boxes(people: Sequence[Detection], image_size: tuple[int, int]) -> list[Detection]:
    """Return several people with a box each: of the mask, or of the keypoints; one as it is."""
    if len(people) < 2:
        return list(people)
    from overt.data.people.crops import keypoint_square  # imports torch

    boxed = []
    for number, person in enumerate(people):
        box = person.box
        if box is None and person.mask is not None:
            box = mask_box(person.mask)
        elif box is None and person.keypoints is not None:
            (x, y), side = keypoint_square(good_keypoints(person.keypoints, image_size))
            box = np.array([x - side / 2, y - side / 2, side, side], np.float32)
        boxed.append(person._replace(box=box, row=number if person.row is None else person.row))
    return boxed


def mask_box(mask: NDArray[Any]) -> Array:  # (4,)
    """Return the box x, y, width, height of a mask (H, W)."""
    rows, columns = np.nonzero(mask)
    low = (columns.min(), rows.min())
    return np.array([*low, np.ptp(columns) + 1, np.ptp(rows) + 1], np.float32)


def read_masks(masks: Masks) -> list[Mask]:
    """Return masks (H, W), from files or as given: (P, H, W), or (H, W) of one person."""
    if isinstance(masks, np.ndarray):
        if masks.ndim not in (2, 3) or masks.size == 0:
            raise DataError(f"masks of shape {masks.shape}; expected (P, H, W) or (H, W)")
        return [np.asarray(mask > 0) for mask in masks.reshape(-1, *masks.shape[-2:])]
    paths = [masks] if isinstance(masks, Path | str) else masks
    return [read_mask_file(Path(path)) for path in paths]


def read_boxes(boxes: Rows) -> Array:  # (P, 4)
    """Return boxes x, y, width, height, from a JSON file or as given."""
    rows = np.atleast_2d(read_rows(boxes, "--boxes"))
    if rows.size == 0:
        raise DataError("--boxes: no box; without --boxes, the model looks for one person")
    if rows.ndim != 2 or rows.shape[1] < 4:
        raise DataError(f"--boxes: expected rows of x, y, width and height, got {rows.shape}")
    return rows[:, :4]


def read_keypoints(keypoints: Rows) -> Array:  # (P, 12, 2) or (P, 12, 3)
    """Return limb joints of people, from a JSON file or as given; (12, 3) are of one person."""
    rows = read_rows(keypoints, "--keypoints")
    if rows.ndim not in (2, 3) or rows.size == 0:
        raise DataError(
            "--keypoints: expected 12 rows of x, y and confidence, or a list of these for several "
            f"people, got {rows.shape}"
        )
    return rows if rows.ndim == 3 else rows[None]


def read_rows(rows: Rows, option: str) -> Array:
    """Return rows of numbers, from a JSON file or as given."""
    if isinstance(rows, np.ndarray):
        return rows.astype(np.float32)
    content = read_json(Path(rows), option)
    try:
        return np.array(content, dtype=np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{option} {rows}: not a JSON list of rows ({error})") from None


def read_json(path: Path, option: str) -> Any:
    """Return the content of a JSON file, which `option` names."""
    try:
        return json.loads(read_file(path))
    except OSError as error:
        raise DataError(f"{option} {path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{option} {path}: not valid JSON ({error})") from None


def check_picture(image_size: tuple[int, int], mask: NDArray[Any] | None) -> None:
    """Refuse a picture, or a person in its mask, too small for a camera; and a wrong mask."""
    height, width = image_size
    if min(height, width) < LEAST_PX:
        raise DataError(
            f"a picture of {width} x {height} pixels is too small to show a person; use one of at "
            f"least {LEAST_PX} x {LEAST_PX} pixels"
        )
    if mask is None:
        return
    if mask.shape != image_size or not np.any(mask):
        is_lying = height != width and mask.shape == (width, height)
        remedy = ". Save it upright, as the EXIF orientation of the picture shows it" * is_lying
        raise DataError(
            f"the mask is {mask.shape} with {np.count_nonzero(mask)} pixels set; it must be "
            f"{image_size} like the picture, and show the person{remedy}"
        )
    extent = int(mask_box(mask)[2:].max())
    if extent < LEAST_PX:
        raise DataError(
            f"the mask shows a person of {extent} pixels; give one that covers at least "
            f"{LEAST_PX} pixels in height or width"
        )


def good_keypoints(keypoints: Array, image_size: tuple[int, int]) -> Array:  # (12, 3)
    """Return a detector's keypoints with 1 in the last column where they count, else 0.

    A keypoint counts if its confidence is above `GOOD_SCORE` and it lies inside the picture.
    """
    rows = np.array(keypoints, np.float32)
    if rows.shape == (len(LIMBS), 2):
        rows = np.pad(rows, ((0, 0), (0, 1)), constant_values=1)
    if rows.shape != (len(LIMBS), 3):
        raise DataError(
            f"keypoints of shape {rows.shape}; expected 12 rows of x, y and confidence: left "
            "and right shoulder, elbow, wrist, hip, knee, ankle"
        )
    if not np.isfinite(rows).all():
        raise DataError(
            f"keypoints with {np.count_nonzero(~np.isfinite(rows))} non-finite values (NaN or "
            "Inf); give a keypoint that was not detected any position and confidence 0"
        )
    height, width = image_size
    pixels_xy, score = rows[:, :2], rows[:, 2]
    is_inside = ((pixels_xy >= 0) & (pixels_xy < (width, height))).all(1)
    is_good = (score > GOOD_SCORE) & is_inside
    if is_good.sum() < FEWEST_KEYPOINTS:
        raise DataError(
            f"{is_good.sum()} of {len(LIMBS)} keypoints have a confidence above {GOOD_SCORE} and "
            f"lie inside the picture of {width} x {height} pixels; a camera needs at least "
            f"{FEWEST_KEYPOINTS}: without --keypoints, the model predicts them"
        )
    extent = float(np.ptp(pixels_xy[is_good], axis=0).max())
    if extent < LEAST_PX:
        raise DataError(
            f"the {is_good.sum()} keypoints that count are within {extent:.3g} pixels of each "
            f"other; a camera needs two that are at least {LEAST_PX} pixels apart"
        )
    rows[:, 2] = is_good
    return rows


def checked_box(box: Array, image_size: tuple[int, int]) -> Array:  # (4,)
    """Return a box x, y, width, height; refuse one in which the picture shows no person."""
    numbers = np.asarray(box, np.float32).ravel()
    if numbers.shape != (4,) or not np.isfinite(numbers).all():
        raise DataError(
            f"a box of {numbers.tolist()}; expected finite x, y, width and height of a person in "
            "pixels"
        )
    height, width = image_size
    name = f"the box [{', '.join(f'{number:g}' for number in numbers)}]"
    low = np.maximum(numbers[:2], 0)
    high = np.minimum(numbers[:2] + numbers[2:], (width, height))
    inside = np.maximum(high - low, 0)
    if inside.min() < LEAST_PX:
        raise DataError(
            f"{name} has {inside[0]:g} x {inside[1]:g} pixels inside the picture of {width} x "
            f"{height}; a person needs at least {LEAST_PX} x {LEAST_PX} (x, y, width, height)"
        )
    if numbers[2:].max() > LARGEST_BOX * max(height, width):
        raise DataError(
            f"{name} is more than {LARGEST_BOX} times as large as the picture of {width} x "
            f"{height} pixels; give the box of a person in it (x, y, width, height)"
        )
    return numbers
