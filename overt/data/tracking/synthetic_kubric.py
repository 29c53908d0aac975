"""Write synthetic sequences in Kubric's on-disk format, to train and test without a download."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.making import claim_folder
from overt.data.tracking.kubric import Tracks
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.files.atomic import MadeMeanwhileError, new_folder
from overt.progress import report

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
) -> list[Path]:
    """Make sure that `root` has sequences 0 to `count` - 1; return those that were missing.

    A sequence depends only on the settings and its number, so a set can be resumed or enlarged.
    """
    root = Path(root)
    settings = SceneSettings(frames, height, width, points, seed, shapes, speed)
    claim_folder(root, {"format": _FORMAT, **asdict(settings)}, "sequences")
    written = []
    for index in range(count):
        sequence = root / f"{index:04d}"
        if sequence.exists():
            continue
        # Another process that writes the same set may be faster: its sequence is identical.
        with suppress(MadeMeanwhileError), new_folder(sequence) as folder:
            _write_sequence(folder, sequence.name, *make_sequence(settings, index))
        written.append(sequence)
        report("writing sequences", index + 1, count)
    return written


def _write_sequence(folder: Path, name: str, video: NDArray[np.uint8], tracks: Tracks) -> None:
    (folder / "frames").mkdir(parents=True)
    for index, image in enumerate(video):
        # Noise hardly compresses: the lowest level is nearly as small and much faster.
        Image.fromarray(image).save(folder / "frames" / f"{index:03d}.png", compress_level=1)
    content = {"coords": tracks.coords_xy, "visibility": ~tracks.visible}
    np.save(folder / f"{name}.npy", np.array(content, dtype=object), allow_pickle=True)
