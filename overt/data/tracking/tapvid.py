"""TAP-Vid videos as published: DAVIS, RGB-Stacking, Kinetics and RoboTAP.

Files are pickles, read as data only. N tracks or queries, T frames; (x, y) in pixels, 0 at the
center of the first pixel. This file does not import torch.
"""

from __future__ import annotations

import io
import logging
import random
import shlex
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.pictures import to_rgb
from overt.errors import ConfigError, DataError, nearest
from overt.files.pickles import load_pickle

logger = logging.getLogger(__name__)

QUERY_MODES = ("first", "strided")
STRIDE = 5  # frames between the queries of mode "strided"

# A fast evaluation: this many videos of the large sets, none longer than this many frames.
FAST_VIDEOS, FAST_FRAMES, FAST_SEED = 50, 300, 42

_REMEDY = "Get the file again from its publisher."


class Format(NamedTuple):
    """Location and content of the files of a data set."""

    folder: str
    pattern: str
    container: type[dict[Any, Any]] | type[list[Any]]  # by name, or without names
    is_large: bool  # a quick evaluation takes only some of its videos
    files: int = 1  # as published


FORMATS = {
    "davis": Format("tapvid_davis", "tapvid_davis.pkl", dict, False),
    "rgb_stacking": Format("tapvid_rgb_stacking", "tapvid_rgb_stacking.pkl", list, False),
    "kinetics": Format("tapvid_kinetics", "*_of_0010.pkl", list, True, 10),
    "robotap": Format("tapvid_robotap", "robotap_split*.pkl", dict, True, 5),
}


@dataclass(frozen=True)
class TapVidVideo:
    """A video with the points to track; one row per query, so a track may appear repeatedly."""

    name: str
    video: NDArray[np.uint8]  # (T, 3, H, W)
    queries_txy: NDArray[np.float32]  # (N, 3)
    tracks_xy: NDArray[np.float32]  # (N, T, 2)
    occluded: NDArray[np.bool_]  # (N, T)


class _Entry(NamedTuple):
    """Where a video lies."""

    file: Path
    key: Hashable  # name or position in the file
    name: str
    frames: int


class TapVid:
    """The videos of one data set; one file is held in memory at a time.

    `root` contains the published folder (`tapvid_davis`, ...), directly or in `tapvid`, or is that
    folder. `fast` selects a fixed 50 videos of Kinetics and RoboTAP; each with more than 300 frames
    is replaced by the next of the 50, as in the published fast evaluations, and may then count
    twice.
    """

    def __init__(
        self,
        root: Path | str,
        dataset: str,
        query_mode: str = "first",
        size: tuple[int, int] | None = (256, 256),
        fast: bool = False,
    ) -> None:
        if dataset not in FORMATS:
            raise ConfigError(
                f"TAP-Vid data set {dataset}{nearest(dataset, list(FORMATS))}; there are "
                f"{', '.join(FORMATS)}"
            )
        if query_mode not in QUERY_MODES:
            raise ConfigError(f"query mode {query_mode}; allowed: {', '.join(QUERY_MODES)}")
        self.dataset = dataset
        self.query_mode = query_mode
        self.size = size  # (height, width), None: as stored
        self._format = FORMATS[dataset]
        self._loaded: tuple[Path, Any] | None = None
        # The number of videos of a file is known only after reading it.
        files = find_files(root, dataset)
        _warn_if_incomplete(files[0].parent, dataset, len(files))
        entries = [entry for file in files for entry in self._entries(file)]
        self._videos = _fast_subset(entries, dataset) if fast and self._format.is_large else entries

    def __len__(self) -> int:
        return len(self._videos)

    @property
    def names(self) -> list[str]:
        """Return the names of the videos in order; Kinetics and RGB-Stacking have only numbers."""
        return [entry.name for entry in self._videos]

    def where(self, index: int) -> str:
        """Return file and name of a video, for messages."""
        entry = self._videos[index]
        return f"{entry.file}, video {entry.name}"

    def video(self, index: int) -> TapVidVideo:
        """Decode one video and select its queries; the stored points are not modified."""
        entry, source = self._videos[index], self.where(index)
        content = self._load(entry.file)[entry.key]
        frames = _decode_frames(content["video"], source)
        points, occluded = _check_tracks(content, len(frames), source)
        if self.size is not None:
            frames = resize(frames, self.size)
        height, width = frames.shape[1:3]
        tracks = points * np.array([width - 1, height - 1], dtype=np.float32)
        rows, moments = choose_queries(occluded, self.query_mode)
        queries = np.concatenate([moments[:, None], tracks[rows, moments]], axis=1)
        return TapVidVideo(
            entry.name,
            np.ascontiguousarray(frames.transpose(0, 3, 1, 2)),
            queries.astype(np.float32),
            tracks[rows],
            occluded[rows],
        )

    def _load(self, file: Path) -> Any:
        if self._loaded is None or self._loaded[0] != file:
            self._loaded = None  # before the next one is read, not after
            with file.open("rb") as stream:
                self._loaded = (file, load_pickle(stream))
        return self._loaded[1]

    def _entries(self, file: Path) -> list[_Entry]:
        content = self._load(file)
        kind = self._format.container
        if not isinstance(content, kind):
            raise DataError(
                f"{file}: holds a {type(content).__name__}, expected a {kind.__name__} of videos "
                f"for {self.dataset}. {_REMEDY}"
            )
        keys = list(content) if isinstance(content, dict) else range(len(content))
        if not keys:
            raise DataError(f"no videos in {file}. {_REMEDY}")
        entries = []
        for key in keys:
            name = str(key) if kind is dict else f"{file.stem}-{key:03d}"
            source = f"{file}, video {name}"
            video = content[key]
            if not isinstance(video, dict):
                raise DataError(f"{source}: a {type(video).__name__}, expected a dict. {_REMEDY}")
            missing = [part for part in ("video", "points", "occluded") if part not in video]
            if missing:
                listed = ", ".join(str(part) for part in video) or "nothing"
                raise DataError(f"{source}: no {', no '.join(missing)}; found {listed}. {_REMEDY}")
            entries.append(_Entry(file, key, name, _count_frames(video["video"], source)))
        return entries


def find_files(root: Path | str, dataset: str) -> list[Path]:
    """Return the files of a data set, sorted."""
    root, layout = Path(root), FORMATS[dataset]
    folders = [root / layout.folder, root / "tapvid" / layout.folder, root]
    for folder in folders:
        files = sorted(folder.glob(layout.pattern)) if folder.is_dir() else []
        if files:
            return files
    raise DataError(
        f"no {layout.pattern} in {' nor in '.join(map(str, folders))}. Point "
        f"evaluation.dataset_root to the folder that holds {layout.folder}, as unpacked from its "
        f"publisher; `overt data tapvid {shlex.quote(str(root))} --dataset {dataset}` makes small "
        "synthetic files."
    )


@cache  # a run opens the data set for every evaluation
def _warn_if_incomplete(folder: Path, dataset: str, files: int) -> None:
    """Warn about missing files: the mean over the other videos is another score."""
    expected = FORMATS[dataset].files
    if files < expected:
        logger.warning(
            "%s has %d of the %d files of %s: scores do not compare with those of the whole set",
            folder,
            files,
            expected,
            dataset,
        )


def _fast_subset(entries: list[_Entry], dataset: str) -> list[_Entry]:
    """Return the fixed selection of a fast evaluation."""
    if dataset == "robotap":
        entries = sorted(entries, key=lambda entry: entry.name)
    if len(entries) > FAST_VIDEOS:
        entries = random.Random(FAST_SEED).sample(entries, FAST_VIDEOS)
    short = [number for number, entry in enumerate(entries) if entry.frames <= FAST_FRAMES]
    if not short:
        raise DataError(
            f"each of the {len(entries)} videos for the quick evaluation of {dataset} has more "
            f"than {FAST_FRAMES} frames. Turn the quick evaluation off."
        )
    # The next short one, from the start again behind the last.
    ahead = [*short, *(number + len(entries) for number in short)]
    chosen = (next(k for k in ahead if k >= number) for number in range(len(entries)))
    return [entries[number % len(entries)] for number in chosen]


def choose_queries(
    occluded: NDArray[np.bool_], mode: str
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return track and frame of each query, given where the tracks (N, T) are occluded.

    first: every track that is ever visible, in the first frame that shows it. strided: in every
    fifth frame, every track visible there.
    """
    visible = ~occluded
    if mode == "first":
        rows = np.flatnonzero(visible.any(axis=1))
        return rows, visible[rows].argmax(axis=1)
    steps, rows = np.nonzero(visible[:, ::STRIDE].T)
    return rows, steps * STRIDE


def resize(frames: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize frames (T, H, W, 3) with Pillow's Lanczos, as published scores do."""
    height, width = size
    if frames.shape[1:3] == (height, width):
        return frames
    kind = Image.Resampling.LANCZOS
    images = (Image.fromarray(frame).resize((width, height), kind) for frame in frames)
    return np.stack([np.asarray(image) for image in images])


def _count_frames(value: Any, source: str) -> int:
    """Return the number of frames; `value` is an array of them or a list of image files."""
    is_array = isinstance(value, np.ndarray) and value.ndim == 4
    if is_array and (value.shape[3] != 3 or value.dtype != np.uint8):
        raise DataError(
            f"{source}: frames of shape {value.shape} and type {value.dtype}, expected uint8 of "
            f"shape (frames, height, width, 3). {_REMEDY}"
        )
    if is_array and 0 in value.shape[1:3]:
        height, width = value.shape[1:3]
        raise DataError(
            f"{source}: frames of {width} x {height} pixels, expected at least 1 x 1. {_REMEDY}"
        )
    files = isinstance(value, list | tuple | np.ndarray) and not is_array
    if files and not all(isinstance(frame, bytes) for frame in value):
        raise DataError(
            f"{source}: its frames are neither one uint8 array nor JPEG files as bytes. {_REMEDY}"
        )
    if not (is_array or files) or len(value) == 0:
        raise DataError(f"{source}: it has no frames. {_REMEDY}")
    return len(value)


def _decode_frames(value: Any, source: str) -> NDArray[np.uint8]:
    """Return the frames (T, H, W, 3) of an array or a list of image files."""
    if isinstance(value, np.ndarray) and value.ndim == 4:
        return value
    frames = []
    for index, data in enumerate(value):
        try:
            with Image.open(io.BytesIO(data)) as image:
                frames.append(to_rgb(image))
        # Pillow raises SyntaxError, ValueError or struct.error for a broken header, OSError
        # otherwise.
        except (
            OSError,
            SyntaxError,
            ValueError,
            struct.error,
            Image.DecompressionBombError,
        ) as error:
            raise DataError(
                f"{source}: frame {index} is not a readable image ({error}). {_REMEDY}"
            ) from error
    sizes = sorted({frame.shape[1::-1] for frame in frames})
    if len(sizes) > 1:
        listed = ", ".join(f"{width}x{height}" for width, height in sizes)
        raise DataError(f"{source}: frames of different sizes, {listed}. {_REMEDY}")
    return np.stack(frames)


def _check_tracks(
    content: dict[str, Any], frames: int, source: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return positions (N, T, 2) as fractions of the image, and occlusion (N, T); both copies."""
    points, occluded = (_as_array(content, key, source) for key in ("points", "occluded"))
    if points.ndim != 3 or points.shape[1:] != (frames, 2) or points.dtype.kind not in "fiu":
        raise DataError(
            f"{source}: points of shape {points.shape} and type {points.dtype}, expected "
            f"numbers of shape (tracks, {frames}, 2) for its {frames} frames. {_REMEDY}"
        )
    if occluded.shape != points.shape[:2] or not np.isin(occluded, (0, 1)).all():
        raise DataError(
            f"{source}: occluded of shape {occluded.shape} and type {occluded.dtype}, expected "
            f"true or false for each of {points.shape[:2]} points. {_REMEDY}"
        )
    points, occluded = points.astype(np.float32), occluded.astype(np.bool_)
    visible_points = points[~occluded]
    if not np.isfinite(visible_points).all() or (np.abs(visible_points - 0.5) > 1).any():
        raise DataError(
            f"{source}: visible points from {visible_points.min():g} to {visible_points.max():g}; "
            f"expected fractions of width and height, from 0 to 1. {_REMEDY}"
        )
    return points, occluded


def _as_array(content: dict[str, Any], key: str, source: str) -> NDArray[Any]:
    try:
        return np.asarray(content[key])
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{source}: {key} has rows of different lengths, expected one row per track, all of "
            f"equal length. {_REMEDY}"
        ) from error
