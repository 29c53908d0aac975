"""overt/recipes/blade/pose_scores.py: every number of the protocol, zero for a perfect person."""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_BLADE, stage_one

from overt.data.people.human_data import HumanData
from overt.distributed import init_distributed
from overt.errors import DataError
from overt.evaluation import summarize
from overt.recipes.blade.camera import LIMB_JOINTS, look
from overt.recipes.blade.people import People
from overt.recipes.blade.pose_scores import MaskFiles, Scorer, read_mask, shrunk_mask


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


def test_labels_without_an_orientation_are_not_scored(root: Path) -> None:
    recipe = SMALL_BLADE["posenet"].recipe(root, *named(root, "posenet"))
    scorer = recipe.scorer(recipe.build_model().eval())
    data = scorer.people.data
    rest = {key: value for key, value in data.columns.items() if key != "smplx/global_orient"}
    scorer.people.data = HumanData(data.path, rest, data.header)
    with pytest.raises(DataError, match=r"the annotations lack smplx/global_orient;"):
        Scorer(scorer.model, scorer.body, scorer.people, scorer.settings)


def test_a_rounded_size_keeps_the_principal_point(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 x 31 pixels at half the size are 16 x 15.5, in a picture of 16 x 16."""
    words = ("evaluation.camera.size=16", "evaluation.camera.keypoint_noise=0")
    recipe = SMALL_BLADE["posenet"].recipe(root, *named(root, "posenet"), *words)
    scorer = recipe.scorer(recipe.build_model().eval())
    monkeypatch.setattr(MaskFiles, "path", lambda self, picture: None)
    picture = np.zeros((31, 32, 3), np.uint8)
    truth = scorer.truth(0, picture)._replace(centre=(16.0, 15.5))
    observed, scale = scorer.observe(0, picture, truth)
    assert (observed.size, observed.centre, scale) == ((16, 16), (8.0, 7.75), 0.5)
    assert truth.focal is not None
    limbs, focal = truth.joints[list(LIMB_JOINTS)], torch.tensor([truth.focal * scale])
    seen, _ = look(limbs[None], truth.origin[None], focal, observed.size, observed.centre)
    torch.testing.assert_close(observed.keypoints, seen)


def test_a_shrunk_mask_has_the_exact_scale() -> None:
    mask = np.zeros((31, 32), bool)
    mask[20:] = True  # from 10 on at half the size, whatever that is rounded to
    assert shrunk_mask(mask, (16, 16), 0.5)[:, 0].tolist() == [False] * 10 + [True] * 6


class Pictures:
    """Stands for people: the names of their pictures."""

    def __init__(self, images: Path, *names: str) -> None:
        self.images, self.names = images, names

    def __len__(self) -> int:
        return len(self.names)

    def picture_path(self, row: int) -> Path:
        return self.images / self.names[row]

    def masks(self) -> list[str | None]:
        files = MaskFiles(cast(People, self))
        paths = [files.path(self.picture_path(row)) for row in range(len(self))]
        return [None if path is None else str(path.relative_to(self.images)) for path in paths]


def add_masks(images: Path, *names: str) -> None:
    for name in names:
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (images / name).touch()


def test_masks_have_the_folders_of_their_pictures(tmp_path: Path) -> None:
    add_masks(tmp_path, "masks/1.png", "masks/A/1.png", "masks/B/1.png", "masks/seq/2.png")
    pictures = Pictures(
        tmp_path, "imgs/1.jpg", "imgs/A/1.jpg", "imgs/B/1.jpg", "seq/2.png", "3.jpg"
    )
    assert pictures.masks() == [
        "masks/1.png", "masks/A/1.png", "masks/B/1.png", "masks/seq/2.png", None,
    ]  # fmt: skip


def test_a_mask_of_several_pictures_is_refused(tmp_path: Path) -> None:
    """The flat layout is found as long as it is clear whose mask it is."""
    add_masks(tmp_path, "imgs/masks/1.png", "imgs/masks/2.png")
    assert Pictures(tmp_path, "imgs/A/1.jpg", "imgs/B/2.jpg").masks() == [
        "imgs/masks/1.png", "imgs/masks/2.png",
    ]  # fmt: skip
    # Several people in one picture are no contradiction.
    assert Pictures(tmp_path, "imgs/A/1.jpg", "imgs/A/1.jpg").masks() == ["imgs/masks/1.png"] * 2
    pictures = Pictures(tmp_path, "imgs/A/1.jpg", "imgs/B/1.jpg")
    with pytest.raises(DataError, match=r"imgs/masks/1\.png could be the mask of .*A/1.*B/1\.jpg"):
        pictures.masks()
    add_masks(tmp_path, "masks/A/1.png")
    assert pictures.masks() == ["masks/A/1.png", "imgs/masks/1.png"]


def test_masks_that_cannot_be_those_of_the_picture_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    Image.fromarray(np.full((4, 6), 255, np.uint8)).save(path)
    with pytest.raises(DataError, match=r"mask\.png: the mask has 6 x 4 pixels, its picture 6 x 6"):
        read_mask(path, (6, 6))
    Image.fromarray(np.zeros((4, 6), np.uint8)).save(path)
    with pytest.raises(DataError, match=r"mask\.png: the mask is black"):
        read_mask(path, (4, 6))
    path.write_bytes(b"xx")
    with pytest.raises(DataError, match=r"mask\.png: not a readable JPEG"):
        read_mask(path, (4, 6))
