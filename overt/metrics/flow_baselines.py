"""Classical trackers that a learned one is compared with: OpenCV's Lucas-Kanade and DIS flow.

Both go from frame to frame. A point counts as visible where following it back returns to within
`RETURNS` pixels of where it came from. T frames, N points, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.tracking.clips import Positions
from overt.data.tracking.settings import KubricSettings, ScoringSettings
from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import NamedRow
from overt.metrics.scored_clips import evaluation_clips, score_clips

RETURNS = 1.5  # pixels
WINDOW, PYRAMID = 15, 4  # Lucas-Kanade: side of its window in pixels, levels
Points = NDArray[np.float32]  # (N, 2) x, y


class Clip(Protocol):
    """What is tracked."""

    @property
    def video(self) -> Tensor: ...  # (T, 3, H, W) uint8
    @property
    def queries(self) -> Tensor: ...  # (N, 3): frame, x, y


# Gray frames from and to, and points of the first: their places in the second and back again.
Step = Callable[[NDArray[np.uint8], NDArray[np.uint8], Points], tuple[Points, Points]]


def opencv() -> Any:
    """OpenCV, or the words to install it."""
    try:
        import cv2
    except ImportError as error:
        raise ConfigError(
            "--baselines needs OpenCV, which is not installed: pip install 'overt[baselines]'"
        ) from error
    return cv2


def lucas_kanade(clip: Clip) -> tuple[Tensor, Tensor]:
    """Positions (T, N, 2) and visibility (T, N) by pyramidal Lucas-Kanade."""
    cv2 = opencv()
    options = {"winSize": (WINDOW, WINDOW), "maxLevel": PYRAMID - 1}

    def follow(before: Any, after: Any, points: Points) -> Points:
        moved, status, _ = cv2.calcOpticalFlowPyrLK(
            before, after, points.reshape(-1, 1, 2), None, **options
        )
        lost = status.reshape(-1) == 0
        moved = moved.reshape(-1, 2)
        moved[lost] = np.inf
        followed: Points = moved.astype(np.float32)
        return followed

    def step(before: Any, after: Any, points: Points) -> tuple[Points, Points]:
        moved = follow(before, after, points)
        lost = ~np.isfinite(moved).all(-1)
        moved[lost] = points[lost]  # stays where it was seen last
        back = follow(after, before, moved)
        back[lost] = np.inf
        return moved, back

    return _chained(clip, step)


def dis_flow(clip: Clip) -> tuple[Tensor, Tensor]:
    """The same by dense inverse search (DIS), chained."""
    cv2 = opencv()
    search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    flows: dict[tuple[int, int], Any] = {}

    def flow(before: Any, after: Any) -> Any:
        key = (id(before), id(after))  # frames live as long as this function
        if key not in flows:
            flows[key] = search.calc(before, after, None)
        return flows[key]

    def step(before: Any, after: Any, points: Points) -> tuple[Points, Points]:
        moved = points + _sampled(flow(before, after), points)
        return moved, moved + _sampled(flow(after, before), moved)

    return _chained(clip, step)


BASELINES = {"lucas_kanade": lucas_kanade, "dis_flow": dis_flow}


def baseline_rows(
    data: KubricSettings, evaluation: ScoringSettings, world: World
) -> dict[str, list[NamedRow]]:
    """Return the scores of each baseline on the clips that a tracker is scored on."""
    clips = evaluation_clips(data, evaluation, Positions.CENTRES)  # as OpenCV counts pixels
    return {name: score_clips(clips, track, world) for name, track in BASELINES.items()}


def _sampled(flow: NDArray[np.float32], points: Points) -> Points:
    """A field (H, W, 2) at points, bilinear; outside, that of its edge."""
    height, width = flow.shape[:2]
    x, y = np.clip(points[:, 0], 0, width - 1), np.clip(points[:, 1], 0, height - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, below = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
    along, down = (x - left)[:, None], (y - top)[:, None]
    upper = flow[top, left] * (1 - along) + flow[top, right] * along
    lower = flow[below, left] * (1 - along) + flow[below, right] * along
    sampled: Points = (upper * (1 - down) + lower * down).astype(np.float32)
    return sampled


def _chained(clip: Clip, step: Step) -> tuple[Tensor, Tensor]:
    """Follow every query to the last frame and back to the first."""
    weights = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    colors = clip.video.permute(0, 2, 3, 1).numpy().astype(np.float32)
    frames = list(np.ascontiguousarray((colors @ weights).round().astype(np.uint8)))
    height, width = frames[0].shape
    queries = clip.queries.numpy()
    start = np.rint(queries[:, 0]).astype(int)
    tracks = np.repeat(queries[None, :, 1:], len(frames), 0).astype(np.float32)  # (T, N, 2)
    visible = np.ones(tracks.shape[:2], dtype=bool)
    for direction in (1, -1):
        order = range(len(frames))[::direction]
        for current, following in pairwise(order):
            begun = (start <= current) if direction == 1 else (start >= current)
            if not begun.any():
                continue
            moved, back = step(frames[current], frames[following], tracks[current, begun])
            returns = np.linalg.norm(back - tracks[current, begun], axis=-1) < RETURNS
            inside = ((moved >= 0) & (moved <= (width - 1, height - 1))).all(-1)
            tracks[following, begun] = moved
            visible[following, begun] = returns & inside
    return torch.from_numpy(tracks), torch.from_numpy(visible)
