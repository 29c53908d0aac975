"""How many points of real videos come back when a tracker follows them forth and back.

    python benchmarks/cycle.py film.mp4 --first 146 --frames 24
    python benchmarks/cycle.py film.mp4 --tracker scaled_offline.pth
    python benchmarks/cycle.py film.mp4 --tracker weights.pt --recipe cotracker3_small

No labels are needed, and none are replaced: a tracker that never moves a point returns all of them.
So the points that have moved are counted by themselves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from command import guarded, positive
from numpy.typing import NDArray

from overt.data.tracking.video import read_video
from overt.tracker import SMALL, Tracker, load_tracker

NEAR, EXACT = 4.0, 1.0  # pixels
MOVED = 4.0


class Returned(NamedTuple):
    points: int
    visible: float  # fraction called visible in the last frame
    returned: float  # fraction of these that come back to within NEAR pixels
    moving: int  # visible points that have moved by more than MOVED pixels
    moving_returned: float
    moving_exact: float  # fraction of the moving points that come back to within EXACT pixels


def forth_and_back(
    tracker: Tracker, frames: NDArray[np.uint8], grid: int, *, forward_only: bool = False
) -> Returned:
    """Follow a grid through frames (T, 3, H, W), and what is visible in the last one back.

    A tracker that never looks back (`forward_only`) is shown the reversed film.
    """
    forth = tracker(frames, grid=grid)
    seen = forth.visible[-1]
    begin, end = forth.queries[seen, 1:], forth.tracks_xy[-1, seen]
    if not seen.any():
        return Returned(len(seen), 0.0, 0.0, 0, 0.0, 0.0)
    film = np.ascontiguousarray(frames[::-1]) if forward_only else frames
    start, stop = (0, -1) if forward_only else (len(frames) - 1, 0)
    times = np.full((len(end), 1), start, np.float32)
    back = tracker(film, queries=np.concatenate([times, end], 1))
    distance = np.linalg.norm(back.tracks_xy[stop] - begin, axis=1)
    moving = np.linalg.norm(end - begin, axis=1) > MOVED
    near, exact = distance < NEAR, distance < EXACT
    of_moving = [float(some[moving].mean()) if moving.any() else 0.0 for some in (near, exact)]
    return Returned(
        len(seen), float(seen.mean()), float(near.mean()), int(moving.sum()), *of_moving
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--tracker", default=SMALL, help="small, or the file of a tracker")
    parser.add_argument("--recipe", help="of a file that does not name its own")
    parser.add_argument("--first", type=int, default=0, help="frame to start from")
    parser.add_argument("--frames", type=positive, default=48)
    parser.add_argument("--grid", type=positive, default=12)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    tracker = load_tracker(options.tracker, recipe=options.recipe, device=options.device)
    forward_only = not getattr(tracker.recipe, "tracks_backward", False)
    print(
        "| video | points | visible at the end | of these back | moving | of these back | exactly |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for path in options.videos:
        frames = read_video(path).frames[options.first : options.first + options.frames]
        row = forth_and_back(tracker, frames, options.grid, forward_only=forward_only)
        print(
            f"| {path.name} | {row.points} | {row.visible:.0%} | {row.returned:.0%} "
            f"| {row.moving} | {row.moving_returned:.0%} | {row.moving_exact:.0%} |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
