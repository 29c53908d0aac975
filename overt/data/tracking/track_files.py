"""Files of tracking: read queries and masks, write tracks.

T frames, N points. This file does not import torch.
"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.data.pictures import BROKEN
from overt.errors import DataError
from overt.files.bounds import read_file

Queries = NDArray[np.float32]  # (N, 3): frame, x, y in pixels


def read_mask(path: Path) -> NDArray[np.bool_]:
    """Read a picture of any format as a mask: what is not black, or not transparent."""
    from PIL import Image

    from overt.data.images.masks import mask_of_image

    try:
        with Image.open(io.BytesIO(read_file(path))) as picture:
            return mask_of_image(picture)
    except BROKEN as error:
        raise DataError(
            f"--mask {path}: not a readable picture ({error}); save it again, in the size of the "
            "video"
        ) from error


def read_queries(path: Path) -> Queries:
    """Read queries from CSV, with or without a header (t or frame, x, y), or JSON triples."""
    try:
        text = read_file(path).decode("utf-8-sig")  # spreadsheets put a byte order mark first
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--queries {path}: it cannot be read ({error})") from error
    rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _csv_rows(path, text)
    if not rows:
        raise DataError(f"--queries {path}: it has no queries; give lines of t,x,y")
    queries = np.zeros((len(rows), 3), dtype=np.float32)
    for index, row in enumerate(rows):
        try:
            values = [float(value) for value in row]
        except (TypeError, ValueError, OverflowError):
            values = []
        is_query = len(values) == 3 and all(map(math.isfinite, values))
        if not is_query or values[0] % 1 or values[0] < 0:
            raise _bad_query(path, index, row)
        queries[index] = values
    return queries


def _csv_rows(path: Path, text: str) -> list[list[str]]:
    try:
        rows = [row for row in csv.reader(text.splitlines()) if any(map(str.strip, row))]
    except csv.Error as error:
        raise DataError(f"--queries {path}: expected lines of t,x,y ({error})") from error
    heading = [word.strip().lower() for word in rows[0]] if rows else []
    rows = rows[1:] if heading in (["t", "x", "y"], ["frame", "x", "y"]) else rows
    if any(mark in cell for row in rows for cell in row for mark in ";\t"):
        raise DataError(
            f"--queries {path}: its columns are separated by semicolons or tabs; separate them by "
            "commas, with a point before decimals: 0,40.5,30.5"
        )
    return rows


def _json_rows(path: Path, text: str) -> list[Any]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits; nested too deep
        raise DataError(f"--queries {path}: not valid JSON ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"--queries {path}: expected a list of [t, x, y]")
    rows = [
        [row.get(key) for key in ("t", "x", "y")] if isinstance(row, dict) else row for row in rows
    ]
    for index, row in enumerate(rows):
        # To Python a string is a list of letters, and true is 1.
        if not isinstance(row, list) or not {type(value) for value in row} <= {int, float}:
            raise _bad_query(path, index, row)
    return rows


def _bad_query(path: Path, number: int, row: object) -> DataError:
    return DataError(
        f"--queries {path}: query {number} is {row}; expected [t, x, y]: integer frame index "
        "from 0 on, then x and y in pixels"
    )


def write_tracks(folder: Path, queries: Queries, arrays: dict[str, NDArray[Any]]) -> None:
    """Write tracks_xy, visible, visibility and confidence, (T, N, ...) each.

    tracks.npz has them as arrays, tracks.csv a line for each point and frame.
    """
    stored: dict[str, Any] = {"queries": queries, **arrays}
    np.savez_compressed(folder / "tracks.npz", **stored)
    frames, points = arrays["visible"].shape
    with (folder / "tracks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["point", "t", "x", "y", "visible", "visibility", "confidence"])
        for point in range(points):
            for frame in range(frames):
                x, y = arrays["tracks_xy"][frame, point]
                sure = (arrays[name][frame, point] for name in ("visibility", "confidence"))
                visible = int(arrays["visible"][frame, point])
                numbers = [f"{x:.3f}", f"{y:.3f}", visible, *(f"{part:.4f}" for part in sure)]
                writer.writerow([point, frame, *numbers])
