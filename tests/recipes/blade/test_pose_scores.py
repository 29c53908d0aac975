"""overt/recipes/blade/pose_scores.py: every number of the protocol, zero for a perfect person."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import SMALL_BLADE, stage_one

from overt.distributed import init_distributed
from overt.evaluation import summarize
from overt.recipes.blade.pose_scores import Scorer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blade")
    stage_one(folder)
    return folder


def named(root: Path, stage: str) -> list[str]:
    return [f"model.depthnet_checkpoint={stage_one(root)}"] if stage == "posenet" else []


def rows(root: Path, stage: str, *overrides: str) -> list[dict[str, Any]]:
    world = init_distributed("cpu")
    torch.manual_seed(0)
    recipe = SMALL_BLADE[stage].recipe(root, *named(root, stage), *overrides)
    with torch.inference_mode():
        return recipe.evaluate_rows(recipe.build_model().eval(), world)


def test_posenet_is_scored_by_every_number_of_the_protocol(root: Path) -> None:
    found = rows(
        root, "posenet", "evaluation.camera.iterations=3", "evaluation.max_samples=2",
        "evaluation.camera.keypoint_noise=0.5",
    )  # fmt: skip
    assert len(found) == 2
    scores = summarize(found)
    assert all(math.isfinite(value) for value in scores.values())
    recipe = SMALL_BLADE["posenet"].recipe(root)
    table = recipe.score_table(found, scores)
    assert table.startswith("people_test: 2 people")
    for title in ("Tz m", "1/Tz", "f %", "PA-MPJPE", "PVE", "mIoU", "P-mIoU"):
        assert title in table


def test_a_perfect_person_has_no_error(root: Path) -> None:
    """The labels themselves as predictions: every error of pose is zero."""
    recipe = SMALL_BLADE["posenet"].recipe(root, *named(root, "posenet"))
    scorer = recipe.scorer(recipe.build_model().eval())
    picture = scorer.people.picture(1)
    truth = scorer.truth(1, picture)
    row = scorer.pose_row(truth.vertices, truth)
    assert max(row.values()) < 1e-2
    seen, scale = scorer.observe(1, picture, truth)
    assert scale == 1.0
    parts = scorer.parts_of_truth(truth, seen.size, scale)
    both, either = (
        ((parts > 0) & (seen.mask[0] > 0)).sum(),
        ((parts > 0) | (seen.mask[0] > 0)).sum(),
    )
    assert both > 0.95 * either


def test_cameras_solved_together_are_those_of_each_person_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("evaluation.camera.iterations=4", "evaluation.max_samples=3")
    alone = rows(root, "posenet", *options)
    monkeypatch.setattr(Scorer, "solved_together", lambda self, seen: [list(seen)])
    together = rows(root, "posenet", *options)
    for row, same in zip(alone, together, strict=True):
        assert row.pop("name") == same.pop("name")
        assert row == pytest.approx(same, rel=1e-3)
