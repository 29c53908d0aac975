"""LBM on TAP-Vid: the scale of positions, the table and the files of `overt evaluate`."""

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_LBM

from overt.cli import main
from overt.data.tracking.synthetic_tapvid import write_videos
from overt.data.tracking.tapvid import TapVid
from overt.distributed import init_distributed
from overt.metrics.scored_clips import EvaluationClips, to_tapvid_pixels
from overt.metrics.tracking import score_clip
from overt.recipes.lbm.data import POSITIONS, evaluation_clips


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tapvid")
    write_videos(root, "davis", 2, frames=4, height=30, width=40, points=6)
    return root


def davis(root: Path) -> list[str]:
    return ["evaluation.dataset=tapvid_davis", f"evaluation.dataset_root={root}"]


def davis_clips(root: Path) -> EvaluationClips:
    return evaluation_clips(SMALL_LBM.config("x", *davis(root)).settings)


def test_positions_are_parts_of_the_image_times_its_size(videos: Path) -> None:
    clip = davis_clips(videos).sample(0)
    stored = TapVid(videos, "davis", size=None).video(0)
    parts = stored.tracks_xy / np.array([39, 29], np.float32)
    np.testing.assert_allclose(clip.tracks.numpy(), 256 * parts.transpose(1, 0, 2), rtol=1e-4)
    assert clip.video.shape == (4, 3, 256, 256)


def test_the_truth_scores_full_marks_and_an_offset_costs(videos: Path) -> None:
    clip = davis_clips(videos).sample(0)
    scale_xy = to_tapvid_pixels(clip, POSITIONS)
    best = score_clip(clip, lambda clip: (clip.tracks, clip.visibility), "first", scale_xy)
    assert best["average_jaccard"] == best["occlusion_accuracy"] == 1
    beside = clip.tracks + torch.tensor([3.0, 0.0])
    off = score_clip(clip, lambda clip: (beside, clip.visibility), "first", scale_xy)
    assert off["pts_within_2"] == 0
    assert off["pts_within_4"] == 1


def test_points_a_little_outside_of_the_image_are_scored(tmp_path: Path) -> None:
    (file,) = write_videos(tmp_path, "davis", 1, frames=4, height=30, width=40, points=6)
    content = pickle.loads(file.read_bytes())
    for video in content.values():
        video["points"][0] = (1.3, -0.4)
        video["occluded"][:] = False
    file.write_bytes(pickle.dumps(content))
    recipe = SMALL_LBM.recipe("x", *davis(tmp_path))
    (row,) = recipe.evaluate_rows(recipe.build_model().eval(), init_distributed("cpu"))
    assert math.isfinite(row["average_jaccard"])


def test_a_clip_without_a_visible_point_is_not_tracked(videos: Path) -> None:
    clip = davis_clips(videos).sample(0)
    clip.visibility[1:] = False

    def track(clip: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("there is nothing to score")

    assert all(
        map(
            math.isnan, score_clip(clip, track, "first", to_tapvid_pixels(clip, POSITIONS)).values()
        )
    )


def test_rows_have_the_names_of_the_videos(videos: Path) -> None:
    recipe = SMALL_LBM.recipe("x", *davis(videos))
    model = recipe.build_model().eval()
    with torch.inference_mode():
        rows = recipe.evaluate_rows(model, init_distributed("cpu"))
        pictures = recipe.visualize(model)
    assert [row["name"] for row in rows] == ["synthetic-000", "synthetic-001"]
    assert "synthetic-001" in recipe.score_table(
        rows, recipe.evaluate(model, init_distributed("cpu"))
    )
    assert pictures["tracks"].dtype == torch.uint8


def test_overt_evaluate_prints_a_table_and_writes_json(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = SMALL_LBM.recipe("x")
    state = recipe.build_model().state_dict()
    # As the official training script writes it: below `model`, with DDP's prefix.
    official = {"model": {f"module.{name}": value for name, value in state.items()}, "epoch": 3}
    torch.save(official, tmp_path / "checkpoint.pt")
    words = [f"checkpoint={tmp_path / 'checkpoint.pt'}", f"output={tmp_path / 'out'}"]
    small = [*SMALL_LBM.sizes("model", "evaluation"), "training.device=cpu"]
    words += ["recipe=lbm_tiny", *small, *davis(videos)]
    assert main(["evaluate", *words]) == 0
    printed = capsys.readouterr().out
    assert "mean of 2 videos" in printed
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]
    assert set(scores) >= {"average_jaccard", "average_pts_within_thresh", "occlusion_accuracy"}


def test_a_foreign_checkpoint_never_loads_nothing_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": {"encoder.weight": torch.zeros(3)}}, tmp_path / "other.pt")
    small = [*SMALL_LBM.sizes("model", "evaluation"), "training.device=cpu"]
    words = [f"checkpoint={tmp_path / 'other.pt'}", "recipe=lbm_tiny", *small]
    assert main(["evaluate", *words]) != 0
    assert "other.pt" in capsys.readouterr().err
