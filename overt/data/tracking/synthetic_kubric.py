"""Writes synthetic sequences in Kubric's on-disk format, to train and test without a download."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.tracking.kubric import Tracks
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.errors import DataError

_MANIFEST = "synthetic.json"
_FORMAT = 1  # counts up when the same settings come to mean other pixels or tracks


def write_sequences(
    root: Path | str,
    count: int,
    frames: int = 24,
    height: int = 96,
    width: int = 128,
    points: int = 256,
    seed: int = 0,
    shapes: int = 6,
    speed: float = 2.5,
    report: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Make sure that `root` holds sequences 0 to `count` - 1; returns those that were missing.

    A sequence depends on the settings and its number only, so a set can be continued or enlarged.
    `report` is called with every sequence written.
    """
    root = Path(root)
    settings = SceneSettings(frames, height, width, points, seed, shapes, speed)
    _claim(root, settings)
    written = []
    for index in range(count):
        sequence = root / f"{index:04d}"
        if sequence.exists():
            continue
        # A folder under its final name is complete: it is filled elsewhere and renamed.
        partial = root / f".{sequence.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        _write_sequence(partial, sequence.name, *make_sequence(settings, index))
        partial.rename(sequence)
        written.append(sequence)
        if report is not None:
            report(sequence)
    return written


def _write_sequence(folder: Path, name: str, video: NDArray[np.uint8], tracks: Tracks) -> None:
    (folder / "frames").mkdir(parents=True)
    for number, image in enumerate(video):
        # Noise hardly compresses: the lightest level is nearly as small and much faster.
        Image.fromarray(image).save(folder / "frames" / f"{number:03d}.png", compress_level=1)
    content = {"coords": tracks.coords_xy, "visibility": ~tracks.visible}
    np.save(folder / f"{name}.npy", np.array(content, dtype=object), allow_pickle=True)


def _claim(root: Path, settings: SceneSettings) -> None:
    """Refuse a folder with other content; else leave a note there of what it holds."""
    wanted = {"format": _FORMAT, **asdict(settings)}
    manifest = root / _MANIFEST
    if manifest.is_file():
        try:
            found = json.loads(manifest.read_text())
        except ValueError:
            found = None
        if found == wanted:
            return
        if isinstance(found, dict):
            keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
            detail = ", ".join(
                f"{key} {found.get(key)} there and {wanted.get(key)} asked for" for key in keys
            )
        else:
            detail = f"{_MANIFEST} is not readable"
        raise DataError(
            f"{root} holds other synthetic sequences ({detail}); sets are not mixed. Choose "
            "another folder, or remove this one."
        )
    partial = manifest.with_suffix(".partial")
    if root.exists() and (not root.is_dir() or set(root.iterdir()) - {partial}):
        raise DataError(
            f"{root} exists and was not made by this command (it has no {_MANIFEST}); synthetic "
            "sequences are not mixed into other data. Choose a new or empty folder."
        )
    root.mkdir(parents=True, exist_ok=True)
    partial.write_text(json.dumps(wanted, indent=2) + "\n")
    partial.rename(manifest)
