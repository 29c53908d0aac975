"""Silhouettes of labels lie over the people in the crops, and those of the model in the picture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL_BLADE, stage_one

from overt.data.images.masks import read_mask_file
from overt.data.people.crops import Crop, cut
from overt.data.rng import sample_rng
from overt.distributed import init_distributed
from overt.errors import ConfigError
from overt.evaluation import summarize
from overt.recipes.blade.pose_scores import MaskFiles, shrunk_mask
from overt.recipes.blade.posenet import PoseOutput
from overt.recipes.blade.silhouette import (
    FEWEST_KEYPOINTS,
    Silhouettes,
    label_camera,
    mask_in_picture,
    silhouette_errors,
)

SIDE = 64
# Large enough that the border of a person is a small part of it.
WORDS = (
    "model.silhouette_head=true", f"data.synthetic.size={SIDE}", f"data.pose_size={SIDE}",
    f"data.pose_step_sizes=[{SIDE}]", "data.synthetic.train=8", "data.synthetic.test=4",
    "data.pose_augmentation.rotation=30", "data.pose_augmentation.rotation_probability=0.7",
    "data.pose_augmentation.mirror=0.5", "data.pose_side=[0.9,0.5]",
    "data.pose_augmentation.shift=0.15", "data.pose_augmentation.shift_probability=0.7",
)  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("silhouette")
    depthnet = f"model.depthnet_checkpoint={stage_one(root)}"
    return SMALL_BLADE["posenet"].recipe(root / "people", *WORDS, depthnet)


def overlap(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:  # (B, H, W) bool to (B,)
    return (first & second).sum((1, 2)) / (first | second).sum((1, 2)).clamp_min(1)


def test_labels_lie_over_the_people_in_mirrored_turned_and_shifted_crops(
    recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks in the place of the pictures: the crop is then the label that is expected."""
    source = recipe.build_dataset().sources[0]
    people = source.people
    masks = MaskFiles(people)

    def masked(row: int) -> np.ndarray:
        path = masks.path(people.picture_path(row))
        assert path is not None
        return np.repeat(255 * read_mask_file(path)[..., None].astype(np.uint8), 3, axis=2)

    monkeypatch.setattr(people, "picture", masked)
    samples = [source.sample(row % 8, sample_rng(3, 0, row)) for row in range(16)]
    batch = recipe.on_device(recipe.collate(samples))
    seen = torch.nn.functional.interpolate(
        batch.pose_images.float(), batch.silhouettes.masks.shape[1:], mode="area"
    )
    assert batch.silhouettes.known.sum() > 8
    found = overlap(batch.silhouettes.masks, seen[:, 0] > 100)[batch.silhouettes.known]
    assert found.mean() > 0.8
    assert found.min() > 0.6
    # Of another person, or with the camera of another crop, it is far less.
    other = overlap(batch.silhouettes.masks.roll(1, 0), seen[:, 0] > 100)
    assert other.mean() < 0.6


def test_the_camera_of_a_label_is_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    limbs = 0.4 * torch.randn(5, 12, 3, generator=draw)
    depth = torch.tensor([1.5, 2.0, 3.0, 5.0, 8.0])
    focal, place = 0.5 + torch.rand(5, generator=draw), 0.2 * torch.randn(5, 2, generator=draw)
    moved = limbs + torch.cat([place, depth[:, None]], dim=1)[:, None]
    centre = 0.5 + 0.2 * torch.randn(5, 2, generator=draw)
    pixels = focal[:, None, None] * moved[..., :2] / moved[..., 2:] + centre[:, None]
    visible = torch.ones(5, 12, 1)
    visible[1, 5:] = 0
    visible[2, FEWEST_KEYPOINTS - 1 :] = 0
    pixels = torch.where(visible > 0, pixels, torch.full_like(pixels, 7.0))  # these do not count
    found, pelvis, known = label_camera(limbs, depth, torch.cat([pixels, visible], dim=-1), centre)
    assert known.tolist() == [True, True, False, True, True]
    torch.testing.assert_close(found[known], focal[known], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pelvis[known, :2], place[known], rtol=1e-3, atol=1e-4)
    assert torch.isfinite(pelvis).all()


def test_people_without_enough_keypoints_cost_nothing() -> None:
    masks = torch.zeros(2, 8, 8, dtype=torch.bool)
    masks[:, 2:6, 2:6] = True
    logits = torch.full((2, 4, 4), -3.0, requires_grad=True)  # coarser than the label
    true = Silhouettes(masks, torch.tensor([True, False]))
    errors, iou = silhouette_errors(logits, true)
    assert errors[0] > 0
    assert errors[1] == 0
    assert iou.tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(errors.sum(), logits)
    assert gradient[1].abs().max() == 0
    perfect = torch.where(masks, 9.0, -9.0)
    errors, iou = silhouette_errors(perfect, true)
    assert errors[0] < 1e-3
    assert iou.tolist() == [1, 0]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_silhouette_lies_in_the_picture_where_its_crop_was_cut(scale: float) -> None:
    picture = np.zeros((60, 90, 3), np.uint8)
    picture[20:44, 34:58] = 255
    crop = Crop((50.0, 30.0), 48.0)
    pixels, _ = cut(picture, crop, SIDE)
    logits = torch.where(torch.from_numpy(pixels[..., 0] > 127), 9.0, -9.0)[None]
    coarse = torch.nn.functional.avg_pool2d(logits[:, None], 2)[:, 0]
    size = (round(60 * scale), round(90 * scale))
    found = mask_in_picture(coarse, crop, SIDE, size, scale) > 0.5
    true = torch.from_numpy(picture[:: round(1 / scale), :: round(1 / scale), 0] > 0)[None]
    assert overlap(found, true).item() > 0.85
    assert not found[:, :, : int(24 * scale)].any()  # beyond the crop there is nobody


def test_in_a_smaller_picture_it_lies_over_the_mask_of_a_file(recipe: Any) -> None:
    """Half a pixel apart, the camera would be solved for something between both."""
    mask = np.zeros((96, 96), bool)
    mask[30:70, 20:52] = True
    logits = torch.where(torch.from_numpy(mask), 9.0, -9.0)[None]
    nothing = torch.zeros(1)
    output = PoseOutput(nothing, nothing, nothing, None, None, logits)
    picture, scale = np.zeros((96, 96, 3), np.uint8), 0.25
    found = recipe.scorer(recipe.build_model()).own_mask(output, 0, picture, (24, 24), scale)
    expected = torch.from_numpy(shrunk_mask(mask, (24, 24), scale))[None]
    assert overlap(found > 0.5, expected).item() == 1


def test_the_head_learns(recipe: Any) -> None:
    torch.manual_seed(0)
    model = recipe.build_model().train()
    source = recipe.build_dataset()
    batch = recipe.on_device(
        recipe.collate([source.sample(row, sample_rng(0, 0, row)) for row in range(4)])
    )
    counts = recipe.counts(batch) | {"samples": torch.tensor(4.0)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    overlaps = []
    for step in range(90):
        output = recipe.loss(model, batch, counts, step)
        overlaps.append(float(output.metrics["silhouette_iou"]))
        optimizer.zero_grad()
        output.losses["silhouette_loss"].backward()
        optimizer.step()
    assert overlaps[-1] > 0.5
    assert overlaps[-1] > overlaps[0] + 0.3


def test_cameras_are_scored_with_what_the_model_sees(recipe: Any) -> None:
    """These scores have names of their own: they do not compare with those helped by the truth."""
    settings = recipe.settings.evaluation.camera
    settings.source, settings.iterations = "model", 2
    try:
        with torch.inference_mode():
            rows = recipe.evaluate_rows(recipe.build_model().eval(), init_distributed("cpu"))
    finally:
        settings.source, settings.iterations = "truth", 0
    scores = summarize(rows)
    assert {"silhouette_iou_percent", "focal_percent_own", "miou_percent_own"} <= set(scores)
    assert not {"focal_percent", "miou_percent", "focal_percent_true_mask"} & set(scores)
    assert "f % (own)" in recipe.score_table(rows, scores)


def test_without_a_silhouette_of_its_own_no_camera_is_called_refined(tmp_path: Path) -> None:
    refined = (
        f"model.depthnet_checkpoint={stage_one(tmp_path)}",
        "evaluation.camera.source=model",
        "evaluation.camera.iterations=2",
    )
    recipe = SMALL_BLADE["posenet"].recipe(tmp_path / "people", *refined)
    recipe.check_evaluation_data()
    with torch.inference_mode():
        rows = recipe.evaluate_rows(recipe.build_model().eval(), init_distributed("cpu"))
    scores = summarize(rows)
    assert "miou_raw_percent_own" in scores
    assert "miou_percent_own" not in scores
    recipe.score_table(rows, scores)
    for unfit, named in (
        (
            "evaluation.camera.optimize_pose=true",
            r"optimize_pose=true with .* model\.silhouette_head=false",
        ),
        ("model.keypoint_head=false", r"source=model .* model\.keypoint_head=false"),
    ):
        wrong = SMALL_BLADE["posenet"].recipe(tmp_path / "people", *refined, unfit)
        with pytest.raises(ConfigError, match=named):
            wrong.check_evaluation_data()
        with pytest.raises(ConfigError, match=named):
            wrong.scorer(wrong.build_model())


def test_a_base_estimator_has_no_silhouette(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.silhouette_head=true needs"):
        SMALL_BLADE["posenet"].recipe(
            tmp_path, "model.silhouette_head=true", "model.base_checkpoint=base"
        )
