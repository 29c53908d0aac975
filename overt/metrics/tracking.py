"""TAP-Vid metrics of point tracking, per video, from counts (arXiv:2211.03726, section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

THRESHOLDS = (1, 2, 4, 8, 16)  # pixels of a 256 x 256 image
COLUMNS = {
    "AJ": "average_jaccard",
    "delta_avg": "average_pts_within_thresh",
    "OA": "occlusion_accuracy",
}


def tapvid_metrics(
    query_points: NDArray[Any],  # (N, 3): the frame comes first, the rest is not read
    gt_occluded: NDArray[Any],  # (N, T)
    gt_tracks_xy: NDArray[Any],  # (N, T, 2) pixels of a 256 x 256 image
    pred_occluded: NDArray[Any],  # (N, T)
    pred_tracks_xy: NDArray[Any],  # (N, T, 2)
    query_mode: str,  # "first" or "strided"
    scored: NDArray[np.bool_] | None = None,  # (N, T) where labels mean anything; None: everywhere
) -> dict[str, float]:
    """Occlusion accuracy, fraction of points within each threshold, and Jaccard index, in 0..1.

    Frames after the query count ("first"), or all but the query ("strided"). A ratio whose
    denominator is zero is NaN: a video without any visible evaluated point has no position score,
    and the caller decides whether to leave it out.
    """
    frames = np.arange(gt_occluded.shape[1])
    query_frames = np.rint(query_points[:, :1])
    if query_mode == "first":
        evaluated = frames > query_frames  # (N, T)
    elif query_mode == "strided":
        evaluated = frames != query_frames
    else:
        raise ValueError(f"query_mode={query_mode!r}; allowed: 'first' and 'strided'")

    if scored is not None:
        evaluated = evaluated & scored
    gt_visible = ~gt_occluded.astype(bool)
    pred_visible = ~pred_occluded.astype(bool)
    metrics = {
        "occlusion_accuracy": _ratio((gt_visible == pred_visible) & evaluated, evaluated.sum())
    }
    positives = gt_visible & evaluated
    difference = pred_tracks_xy.astype(np.float64) - gt_tracks_xy.astype(np.float64)
    squared_distance = np.square(difference).sum(-1)  # (N, T)
    for threshold in THRESHOLDS:
        correct = (squared_distance < threshold**2) & positives
        claimed = pred_visible & evaluated
        metrics[f"pts_within_{threshold}"] = _ratio(correct, positives.sum())
        metrics[f"jaccard_{threshold}"] = _ratio(
            correct & claimed, positives.sum() + (claimed & ~correct).sum()
        )
    for average, part in (
        ("average_pts_within_thresh", "pts_within"),
        ("average_jaccard", "jaccard"),
    ):
        values = [metrics[f"{part}_{threshold}"] for threshold in THRESHOLDS]
        metrics[average] = sum(values) / len(values)
    return metrics


def _ratio(hits: NDArray[np.bool_], total: np.integer[Any]) -> float:
    return int(hits.sum()) / int(total) if total else float("nan")


def score_table(rows: Sequence[Mapping[str, Any]], means: Mapping[str, float]) -> str:
    """AJ, delta_avg and OA of each named row and on average, in percent as papers print them."""
    width = max(len(str(row["name"])) for row in [*rows, {"name": "mean of 0000 videos"}])
    scored = sum(not math.isnan(row[COLUMNS["AJ"]]) for row in rows)

    def line(name: str, values: Sequence[str]) -> str:
        return f"{name:<{width}}" + "".join(f"{value:>11}" for value in values)

    def numbers(row: Mapping[str, Any]) -> list[str]:
        values = [row[key] for key in COLUMNS.values()]
        return ["-" if math.isnan(value) else f"{100 * value:.1f}" for value in values]

    rule = "-" * (width + 11 * len(COLUMNS))
    lines = [line("video", list(COLUMNS)), rule]
    lines += [line(str(row["name"]), numbers(row)) for row in rows]
    lines += [rule, line(f"mean of {scored} videos", numbers(means))]
    static = {key: means.get(f"static_{key}", math.nan) for key in COLUMNS.values()}
    if not all(map(math.isnan, static.values())):
        lines.append(line("static (no motion)", numbers(static)))
    if scored < len(rows):
        lines.append(f"{len(rows) - scored} skipped: no visible point to score")
    return "\n".join(lines)


class TrackedClip(Protocol):
    """What is known of a clip that is scored: T frames, N points; positions in its own pixels."""

    @property
    def video(self) -> Tensor: ...  # (T, 3, H, W)
    @property
    def tracks(self) -> Tensor: ...  # (T, N, 2)
    @property
    def visibility(self) -> Tensor: ...  # (T, N) bool
    @property
    def queries(self) -> Tensor: ...  # (N, 3) (t, x, y)


ClipT = TypeVar("ClipT", bound=TrackedClip)


def score_clip(
    clip: ClipT,
    track: Callable[[ClipT], tuple[Tensor, Tensor]],  # positions (T, N, 2), visible (T, N)
    query_mode: str,
    scale_xy: Tensor,  # (2,) from pixels of the clip to those of a 256 x 256 image
) -> dict[str, float]:
    """The scores of a tracker beside those of points that never move nor vanish.

    A clip without a visible point to score has no score at all, and is not tracked.
    """

    def scores(tracks: Tensor, visible: Tensor) -> dict[str, float]:
        return tapvid_metrics(
            clip.queries.numpy(),
            ~clip.visibility.T.numpy(),
            (clip.tracks * scale_xy).transpose(0, 1).numpy(),
            ~visible.T.numpy(),
            (tracks * scale_xy).transpose(0, 1).numpy(),
            query_mode,
            mask,
        )

    scored = getattr(clip, "scored", None)
    mask = None if scored is None else scored.T.numpy()
    static = scores(
        clip.queries[:, 1:].expand_as(clip.tracks), clip.visibility.new_ones(clip.visibility.shape)
    )
    shown = {f"static_{name}": static[name] for name in COLUMNS.values()}
    if math.isnan(static["average_pts_within_thresh"]):
        return dict.fromkeys(static | shown, math.nan)
    return scores(*track(clip)) | shown
