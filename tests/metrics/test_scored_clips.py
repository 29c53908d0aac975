"""overt/metrics/scored_clips.py: one truth, whichever way a recipe counts its positions."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_COTRACKER3
from torch import Tensor

from overt.config import load
from overt.data.tracking.clips import Positions, TrackSample
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.data.tracking.synthetic_tapvid import write_videos
from overt.distributed import World
from overt.errors import ConfigError, DataError
from overt.metrics.scored_clips import (
    EvaluationClips,
    HeldOutClips,
    TapVidClips,
    evaluation_clips,
    further_recipes,
    score_clips,
    to_tapvid_pixels,
)
from tests.data.tracking.test_dynamic_replica import write_dynamic_replica
from tests.data.tracking.test_point_odyssey import write_point_odyssey

ALONE = World(0, 1, 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scored")
    write_videos(root, "davis", 2, frames=6, height=30, width=40, points=8, speed=4)
    write_sequences(root / "kubric", 2, frames=8, height=40, width=48, points=40)
    return root


def clips_of(root: Path, dataset: str, positions: Positions) -> EvaluationClips:
    words = ["recipe=lbm_tiny", f"data.root={root / 'kubric'}", "data.held_out=2"]
    words += ["data.crop_size=[32,40]", "evaluation.frames=6", "evaluation.points_per_sequence=7"]
    words += [f"evaluation.dataset={dataset}", f"evaluation.dataset_root={root}"]
    settings = load(words).settings
    return evaluation_clips(settings.data, settings.evaluation, positions)


def test_the_data_set_that_is_named_is_read(root: Path) -> None:
    held_out = clips_of(root, "kubric_held_out", Positions.CENTRES)
    assert isinstance(held_out, HeldOutClips)
    assert held_out.names == ["0000", "0001"]
    assert held_out.sample(1).tracks.shape == (6, 7, 2)
    videos = clips_of(root, "tapvid_davis", Positions.CENTRES)
    assert isinstance(videos, TapVidClips)
    assert len(videos) == 2


def test_both_ways_of_counting_meet_in_the_image_of_tapvid(root: Path) -> None:
    """Shares of the image are the same; pixels of 256 differ by 256 / 255 as the methods do."""
    shares, centres = (
        clips_of(root, "tapvid_davis", positions).sample(0) for positions in Positions
    )
    assert torch.equal(shares.video, centres.video)
    torch.testing.assert_close(shares.tracks / 256, centres.tracks / 255)
    torch.testing.assert_close(shares.queries[:, 1:] / 256, centres.queries[:, 1:] / 255)
    assert torch.equal(shares.queries[:, 0], centres.queries[:, 0])
    for clip, positions in ((shares, Positions.SHARES), (centres, Positions.CENTRES)):
        assert to_tapvid_pixels(clip, positions).tolist() == [1.0, 1.0]


def test_distances_are_measured_in_256_pixels(root: Path) -> None:
    clip = clips_of(root, "kubric_held_out", Positions.CENTRES).sample(0)  # 32 x 40 pixels
    torch.testing.assert_close(
        to_tapvid_pixels(clip, Positions.CENTRES), torch.tensor([255 / 39, 255 / 31])
    )
    torch.testing.assert_close(
        to_tapvid_pixels(clip, Positions.SHARES), torch.tensor([256 / 40, 256 / 32])
    )


@pytest.mark.parametrize("positions", Positions)
def test_queries_a_little_outside_are_moved_to_the_edge(
    positions: Positions, tmp_path: Path
) -> None:
    """Published files have visible points beyond the edge; trackers allow a pixel of it."""
    write_still_points(tmp_path, [(-0.3, 0.5), (0.5, 1.4), (-0.002, 1.0), (0.25, 0.75)])
    clip = clips_of(tmp_path, "tapvid_davis", positions).sample(0)
    last = 256 - positions
    expected = [(-1, 0.5 * last), (0.5 * last, 256), (-0.002 * last, last)]
    expected.append((0.25 * last, 0.75 * last))
    torch.testing.assert_close(clip.queries[:, 1:], torch.tensor(expected))
    # The truth stays where it is.
    torch.testing.assert_close(clip.tracks[3, 0], torch.tensor([-0.3 * last, 0.5 * last]))


def test_what_a_tracker_refuses_names_file_and_video(root: Path) -> None:
    def refuse(clip: TrackSample) -> tuple[Tensor, Tensor]:
        raise DataError("not that one")

    expected = {"tapvid_davis": r"tapvid_davis\.pkl, video .+", "kubric_held_out": "kubric/0000"}
    for dataset, where in expected.items():
        with pytest.raises(DataError, match=rf"{where}: not that one"):
            score_clips(clips_of(root, dataset, Positions.CENTRES), refuse, ALONE)


def write_still_points(root: Path, places: list[tuple[float, float]]) -> None:
    """A DAVIS file with one video of points that stand still, visible all the time."""
    points = np.tile(np.array(places, np.float32)[:, None], (1, 5, 1))
    video = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    hidden = np.zeros(points.shape[:2], bool)
    content = {"edge": {"video": video, "points": points, "occluded": hidden}}
    (root / "tapvid_davis").mkdir()
    (root / "tapvid_davis" / "tapvid_davis.pkl").write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("dataset", ["kubric_held_out", "tapvid_davis"])
def test_the_truth_scores_one_and_rows_have_names(dataset: str, root: Path) -> None:
    clips = clips_of(root, dataset, Positions.SHARES)

    def truth(clip: TrackSample) -> tuple[Tensor, Tensor]:
        return clip.tracks, clip.visibility

    def beside(clip: TrackSample) -> tuple[Tensor, Tensor]:
        return clip.tracks + torch.tensor([0.0, 3.0]), clip.visibility

    rows = score_clips(clips, truth, ALONE)
    assert [row["name"] for row in rows] == list(clips.names)
    assert all(row["average_jaccard"] == 1 for row in rows)
    # Three pixels of the clip are 3 of 256, or 24 where the clip is 32 pixels high.
    within = 4 if dataset == "tapvid_davis" else None
    for row in score_clips(clips, beside, ALONE):
        for threshold in (1, 2, 4, 8, 16):
            expected = within is not None and threshold >= within
            assert row[f"pts_within_{threshold}"] == expected


@pytest.mark.parametrize("dataset", ["dynamic_replica", "point_odyssey"])
def test_further_sets_are_read_and_scored(dataset: str, tmp_path: Path) -> None:
    write = write_dynamic_replica if dataset == "dynamic_replica" else write_point_odyssey
    write(tmp_path / "set")
    also = f"evaluation.also={{{dataset}: {{dataset_root: {tmp_path / 'set'}, frames: 9}}}}"
    recipe = SMALL_COTRACKER3.recipe(tmp_path / "data", "data.held_out=1", also)
    ((name, further),) = further_recipes(recipe).items()
    assert (name, further.settings.evaluation.dataset) == (dataset, dataset)
    clips = evaluation_clips(further.settings.data, further.settings.evaluation, Positions.CENTRES)
    sample = clips.sample(0)
    assert sample.video.shape[0] == 9
    assert torch.equal(sample.queries[:, 1:], sample.tracks[0])
    rows = score_clips(clips, lambda clip: (clip.tracks, clip.visibility), ALONE)
    assert rows[0]["average_jaccard"] == 1
    if dataset == "point_odyssey":  # a wrong visibility counts only where labels mean anything
        everywhere = torch.ones_like(sample.visibility)
        assert not sample.visibility.all()
        rows = score_clips(clips, lambda clip: (clip.tracks, everywhere), ALONE)
        assert rows[0]["occlusion_accuracy"] == 1
    assert list(recipe.evaluation_sets()) == [dataset]


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ("{a: 3}", "expected keys"),
        ("{a: {root: x}}", "expected keys"),
        ("{point_odyssey: {}}", "needs evaluation.dataset_root"),
        ("{a: {dataset_root: x}}", "evaluation.dataset=a"),
        ("{dynamic_replica: {dataset_root: x, query_mode: strided}}", "query_mode=first"),
        ("{point_odyssey: {dataset_root: x, frames: 6.5}}", r"also\.point_odyssey\.frames: .*6\.5"),
        ("{kubric_held_out: {grid_size: null}}", r"also\.kubric_held_out\.grid_size: .*None"),
        ("{kubric_held_out: {resolution: 64}}", r"also\.kubric_held_out\.resolution: "),
        ("{kubric_held_out: {fast: maybe}}", r"also\.kubric_held_out\.fast: .*maybe"),
    ],
)
def test_further_sets_that_are_refused(also: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL_COTRACKER3.recipe(tmp_path, f"evaluation.also={also}")


def test_values_of_further_sets_have_the_types_of_their_keys(tmp_path: Path) -> None:
    also = '{point_odyssey: {dataset_root: 2024, single_point: "no", frames: "6"}}'
    recipe = SMALL_COTRACKER3.recipe(tmp_path, f"evaluation.also={also}")
    (settings,) = recipe.settings.evaluation.further_sets().values()
    assert settings.dataset_root == "2024"
    assert settings.single_point is False
    assert settings.frames == 6
