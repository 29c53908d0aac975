"""TAP-Vid metrics: extremes, which frames count, what has no score."""

import math
from typing import Any

import numpy as np
import pytest

from overt.metrics.tracking import COLUMNS, THRESHOLDS, score_table, tapvid_metrics


def video(seed: int = 0, points: int = 6, frames: int = 9) -> dict[str, Any]:
    """A video whose prediction is perfect."""
    rng = np.random.default_rng(seed)
    tracks = rng.uniform(0, 255, (points, frames, 2))
    occluded = rng.random((points, frames)) < 0.4
    queries = np.stack([rng.integers(0, frames - 1, points), *np.zeros((2, points))], axis=1)
    return {
        "query_points": queries,
        "gt_occluded": occluded,
        "gt_tracks_xy": tracks,
        "pred_occluded": occluded.copy(),
        "pred_tracks_xy": tracks.copy(),
    }


@pytest.mark.parametrize("query_mode", ["first", "strided"])
def test_a_perfect_prediction_scores_one_everywhere(query_mode: Any) -> None:
    metrics = tapvid_metrics(**video(), query_mode=query_mode)
    assert len(metrics) == 3 + 2 * len(THRESHOLDS)
    assert set(metrics.values()) == {1.0}


@pytest.mark.parametrize("query_mode", ["first", "strided"])
def test_frames_that_do_not_count_change_nothing(query_mode: Any) -> None:
    expected = tapvid_metrics(**video(), query_mode=query_mode)
    spoilt = video()
    for point, frame in enumerate(spoilt["query_points"][:, 0].astype(int)):
        skipped = slice(0, frame + 1) if query_mode == "first" else slice(frame, frame + 1)
        spoilt["pred_tracks_xy"][point, skipped] += 100
        spoilt["pred_occluded"][point, skipped] ^= True
    assert tapvid_metrics(**spoilt, query_mode=query_mode) == expected
    spoilt["pred_tracks_xy"] += 100
    assert tapvid_metrics(**spoilt, query_mode=query_mode)["pts_within_16"] == 0


def test_the_threshold_itself_is_outside() -> None:
    exact = video()
    exact["gt_tracks_xy"] = np.round(exact["gt_tracks_xy"])
    exact["pred_tracks_xy"] = exact["gt_tracks_xy"] + np.array([4.0, 0.0])
    metrics = tapvid_metrics(**exact, query_mode="first")
    assert (metrics["pts_within_4"], metrics["pts_within_8"]) == (0.0, 1.0)
    assert metrics["average_pts_within_thresh"] == pytest.approx(2 / 5)


def test_occluded_points_claimed_visible_are_false_positives() -> None:
    claimed = video()
    claimed["pred_occluded"][:] = False
    metrics = tapvid_metrics(**claimed, query_mode="strided")
    counted = np.arange(9) != claimed["query_points"][:, :1]
    visible = (~claimed["gt_occluded"] & counted).sum()
    assert metrics["average_pts_within_thresh"] == 1.0
    assert metrics["average_jaccard"] == pytest.approx(visible / counted.sum())
    assert metrics["occlusion_accuracy"] == pytest.approx(visible / counted.sum())


def test_no_visible_evaluated_point_is_nan_without_a_warning(recwarn: Any) -> None:
    hidden = video()
    hidden["gt_occluded"][:] = True
    hidden["pred_occluded"][:] = True
    metrics = tapvid_metrics(**hidden, query_mode="first")
    assert math.isnan(metrics["average_pts_within_thresh"])
    assert math.isnan(metrics["average_jaccard"])
    assert metrics["occlusion_accuracy"] == 1.0
    assert not recwarn.list


def test_an_unknown_query_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'last'; allowed: 'first' and 'strided'"):
        tapvid_metrics(**video(), query_mode="last")  # type: ignore[arg-type]


def test_the_table_shows_percent_per_video_and_on_average() -> None:
    keys = list(COLUMNS.values())
    rows = [
        {"name": "dog", **dict(zip(keys, (0.5, 0.625, 0.75), strict=True))},
        {"name": "nobody", **dict.fromkeys(keys, math.nan)},
    ]
    means = dict(zip(keys, (0.5, 0.625, 0.75), strict=True))
    lines = [line.split() for line in score_table(rows, means).splitlines()]
    assert ["video", "AJ", "delta_avg", "OA"] in lines
    assert ["dog", "50.0", "62.5", "75.0"] in lines
    assert ["nobody", "-", "-", "-"] in lines
    assert ["mean", "of", "1", "videos", "50.0", "62.5", "75.0"] in lines
    assert lines[-1][:3] == ["1", "skipped:", "no"]
    static = {f"static_{key}": 0.25 for key in keys}
    assert ["static", "(no", "motion)", "25.0", "25.0", "25.0"] in [
        line.split() for line in score_table(rows, means | static).splitlines()
    ]
