"""Write small synthetic videos in the file formats of TAP-Vid, for tests and demos."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.data.tracking.tapvid import FORMATS
from overt.errors import DataError
from overt.files.atomic import new_folder, remove_left_overs
from overt.progress import report

# The files of each data set; videos are distributed over them in turn.
_FILES = {
    "davis": ["tapvid_davis.pkl"],
    "rgb_stacking": ["tapvid_rgb_stacking.pkl"],
    "kinetics": [f"{number:04d}_of_0010.pkl" for number in range(10)],
    "robotap": [f"robotap_split{number}.pkl" for number in range(5)],
}


def write_videos(
    root: Path | str,
    dataset: str,
    videos: int,
    frames: int = 24,
    height: int = 96,
    width: int = 128,
    points: int = 32,
    seed: int = 0,
    shapes: int = 6,
    speed: float = 2.5,
) -> list[Path]:
    """Write `videos` into the folder of the data set below `root`; return the files.

    A video depends only on the settings and its number. Existing files are not overwritten.
    """
    folder = Path(root) / FORMATS[dataset].folder
    if folder.exists():
        raise DataError(
            f"{folder} exists; synthetic videos are not mixed into other data. Choose another "
            "folder, or remove this one."
        )
    settings = SceneSettings(frames, height, width, points, seed, shapes, speed)
    remove_left_overs(folder.parent)
    files = _FILES[dataset][:videos]
    named = FORMATS[dataset].container is dict
    written = 0
    with new_folder(folder) as unfinished:
        for number, name in enumerate(files):
            chosen = range(number, videos, len(files))
            entries = {}
            for index in chosen:
                entries[f"synthetic-{index:03d}"] = _video(settings, index, dataset)
                written += 1
                report("writing videos", written, videos)
            with (unfinished / name).open("wb") as file:
                pickle.dump(entries if named else list(entries.values()), file, protocol=4)
    return [folder / name for name in files]


def _video(settings: SceneSettings, index: int, dataset: str) -> dict[str, Any]:
    frames, tracks = make_sequence(settings, index)
    corner = np.array([settings.width - 1, settings.height - 1], dtype=np.float32)
    return {
        "video": [_jpeg(frame) for frame in frames] if dataset == "kinetics" else frames,
        "points": tracks.coords_xy / corner,
        "occluded": ~tracks.visible,
    }


def _jpeg(frame: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, format="JPEG", quality=95, subsampling=0)
    return stream.getvalue()
