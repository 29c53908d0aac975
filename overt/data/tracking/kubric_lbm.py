"""LBM's copy of Kubric: sequences of 24 frames, cut from those in CoTracker's layout.

ROOT/0000/frames/000.png ... 023.png, ROOT/0000/0000.npy with the tracks, and optionally
ROOT/0000/depths, which is not read here. Tracks of N points over T frames are stored as in Kubric:
`coords` (N, T, 2) and `visibility` (N, T), where true means occluded.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.tracking.kubric import Tracks, frame_paths, list_sequences, read_tracks
from overt.data.tracking.video import natural_order
from overt.errors import DataError
from overt.files.atomic import MadeMeanwhileError, new_folder, remove_left_overs
from overt.progress import each

FRAMES = 24
TRACKS = 2048


class Converted(NamedTuple):
    """Outcome of the conversion of a data set."""

    written: list[Path]
    kept: int  # were there already
    left_out: dict[str, str]  # sequences and parts of them, and why


def convert(
    source: Path | str,
    out: Path | str,
    frames: int = FRAMES,
    tracks: int = TRACKS,
    windows: int | None = None,
) -> Converted:
    """Cut the sequences of `source` into windows of `frames` and write each as a sequence of `out`.

    The first `windows` windows of every sequence are used, by default all that fit. Image files are
    linked if the file system allows it, otherwise copied. Windows that are too short or show no
    track are skipped and named; existing sequences are kept.
    """
    out = Path(out)
    sequences = list_sequences(source)
    out.mkdir(parents=True, exist_ok=True)
    remove_left_overs(out)
    result = Converted([], 0, {})
    for sequence in each(sequences, "cutting sequences"):
        try:
            source_tracks = read_tracks(sequence)
        except DataError as error:
            result.left_out[sequence.name] = str(error)
            continue
        length = source_tracks.coords_xy.shape[1]
        runs = length // frames if windows is None else min(windows, length // frames)
        if runs == 0:
            result.left_out[sequence.name] = f"{length} frames, fewer than {frames}"
        for run in range(runs):
            # The name contains the origin of the window, so that a conversion can be resumed.
            target = out / (f"{sequence.name}_{run:02d}" if runs > 1 else sequence.name)
            if target.exists():
                result = result._replace(kept=result.kept + 1)
                continue
            span = range(run * frames, (run + 1) * frames)
            chosen = _choose(source_tracks, span, tracks)
            if len(chosen) == 0:
                result.left_out[target.name] = "no track is visible in its first frame"
                continue
            _write(sequence, target, source_tracks, span, chosen)
            result.written.append(target)
    return result


def _choose(tracks: Tracks, span: range, limit: int) -> NDArray[np.intp]:
    """Return tracks visible in the first frame of the window, evenly spaced in their list."""
    visible = np.flatnonzero(tracks.visible[:, span.start])
    count = min(limit, len(visible))
    return visible[np.linspace(0, len(visible) - 1, count).round().astype(np.intp)]


def _write(
    sequence: Path, target: Path, tracks: Tracks, span: range, chosen: NDArray[np.intp]
) -> None:
    images = {"frames": frame_paths(sequence)}
    if (sequence / "depths").is_dir():
        images["depths"] = sorted((sequence / "depths").iterdir(), key=natural_order)
    content = {
        "coords": tracks.coords_xy[chosen, span.start : span.stop],
        "visibility": ~tracks.visible[chosen, span.start : span.stop],
    }
    # Another process that converts the same set may be faster: its sequence is identical.
    with suppress(MadeMeanwhileError), new_folder(target) as folder:
        for name, paths in images.items():
            (folder / name).mkdir()
            for index, frame in enumerate(span):
                if frame < len(paths):
                    _link(paths[frame], folder / name / f"{index:03d}{paths[frame].suffix}")
        array = np.array(content, dtype=object)
        np.save(folder / f"{target.name}.npy", array, allow_pickle=True)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, target)
