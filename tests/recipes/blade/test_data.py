"""overt/recipes/blade/data.py: samples follow from their generator, labels from the crop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from real_files import write_dressed_body
from small_recipes import SMALL_BLADE

from overt.config import build_recipe, load
from overt.data.people.crops import box_square, centred_side, draw_crop
from overt.data.rng import sample_rng
from overt.errors import DataError
from overt.geometry.pose import rotate_in_plane
from overt.recipes.blade.camera import LIMB_JOINTS
from overt.recipes.blade.data import open_evaluation
from overt.recipes.blade.pose_recipe import true_rotations

AUGMENTED = [
    "model.tz_conditioning=false",
    "data.pose_side=[1.0,0.0]",
    "data.pose_augmentation.rotation=30",
    "data.pose_augmentation.rotation_probability=1",
]


@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_a_sample_is_a_function_of_row_and_generator(tmp_path: Path, stage: str) -> None:
    recipe = SMALL_BLADE[stage].recipe(tmp_path, *(AUGMENTED if stage == "posenet" else []))
    source = recipe.build_dataset()
    one, again, other = (source.sample(3, sample_rng(seed, 0, 3)) for seed in (0, 0, 1))
    changed = 0 if stage == "depthnet" else 1  # the crop that the draws change
    assert torch.equal(one[changed], again[changed])
    assert not torch.equal(one[changed], other[changed])


@pytest.mark.parametrize("live", [False, True])
def test_people_are_as_large_in_training_as_in_the_scored_pictures(
    tmp_path: Path, live: bool
) -> None:
    """PoseNet is scored on whole pictures: a crop of another scale has not seen their people."""
    words = ["model.tz_conditioning=false", "data.pose_augmentation.mirror=0"]
    written = SMALL_BLADE["posenet"].recipe(tmp_path, *words).build_dataset().sources[0]
    recipe = SMALL_BLADE["posenet"].recipe(tmp_path, *words)
    if live:
        write_dressed_body(tmp_path / "body.npz")
        for key in ("data.synthetic.body", "model.body.model"):
            words.append(f"{key}={tmp_path / 'body.npz'}")
        recipe = SMALL_BLADE["posenet"].recipe(
            tmp_path, *words, "data.synthetic.live=true", "data.synthetic.fixed_colors=false"
        )
    source = recipe.build_dataset() if live else written
    samples = [source.sample(row % len(source), sample_rng(0, row, 0)) for row in range(16)]
    trained = recipe.on_device(recipe.collate(samples)).keypoints[..., :2] - 0.5
    scored = [written.people.limb_keypoints(row)[:, :2] / 32 - 0.5 for row in range(len(written))]
    # The largest distance of a limb joint from the middle of the picture.
    reached = trained.abs().amax((1, 2)).median()
    expected = torch.tensor(np.stack(scored)).abs().amax((1, 2)).median()
    assert 0.8 < reached / expected < 1.25


def test_labels_follow_the_augmented_crop(tmp_path: Path) -> None:
    """Limb joints, projected with the turned and mirrored pose, lie where the crop shows them."""
    recipe = SMALL_BLADE["posenet"].recipe(tmp_path, *AUGMENTED)
    source = recipe.build_dataset().sources[0]
    body = recipe.body(torch.device("cpu"))
    kinds = set()
    for row in range(8):
        sample = source.sample(row, sample_rng(5, 0, row))
        generator = sample_rng(5, 0, row)
        generator.random()  # the side's share of chance, which here is none
        side = centred_side(source.people.limb_keypoints(row), (32, 32))
        crop = draw_crop((16, 16), side, (32, 32), source.augmentation, generator)
        kinds.add(crop.mirrored)
        pelvis = torch.from_numpy(source.people.pelvis(row))
        pelvis = pelvis * torch.tensor([-1.0 if crop.mirrored else 1.0, 1.0, 1.0])
        pelvis = rotate_in_plane(torch.eye(3)[None], torch.tensor([crop.degrees]))[0] @ pelvis
        joints = body.joints(sample.shape[None], true_rotations(sample.pose[None]))[0]
        limbs = (joints - joints[0])[list(LIMB_JOINTS)] + pelvis
        focal = float(source.people.data.columns["K"][row, 0, 0])
        expected = focal * 32 / side * limbs[:, :2] / limbs[:, 2:] + 16
        known = sample.keypoints[:, 2] > 0
        difference = (32 * sample.keypoints[:, :2] - expected)[known].abs()
        assert difference.max() < 1.5  # a mirrored picture is one pixel off
    assert kinds == {True, False}


@pytest.mark.parametrize("key", ["    body: null\n", ""])
def test_an_older_run_goes_on_with_capsules(tmp_path: Path, key: str) -> None:
    """Its configuration names the body of the model, but not that of the people."""
    text = SMALL_BLADE["depthnet"].config(tmp_path).text
    # As before: the same command resumes the run, without a change to confirm.
    assert "    body: null\n" in text
    assert "    model: capsule\n" in text
    file = tmp_path / "config.yaml"
    file.write_text(text.replace("    body: null\n", key))
    recipe = build_recipe(load([], config_file=str(file)))
    recipe.check_evaluation_data()
    assert recipe.build_dataset().sources[0].people.data.header.body == "capsule"


def test_an_evaluation_renders_the_people_it_scores_and_nobody_else(tmp_path: Path) -> None:
    annotations = tmp_path / "people" / "preprocessed_datasets"
    real = SMALL_BLADE["depthnet"].recipe(tmp_path, "evaluation.dataset=spec_mtp_p3")
    with pytest.raises(DataError, match=r"spec_mtp_p3\.npz: no such annotation file"):
        real.check_evaluation_data()
    assert not annotations.exists()
    rendered = SMALL_BLADE["depthnet"].recipe(tmp_path)
    rendered.check_evaluation_data()
    assert [path.name for path in annotations.iterdir()] == ["people_test.npz"]


@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_a_missing_picture_is_named_before_the_first_step(stage: str, tmp_path: Path) -> None:
    words = ["model.tz_conditioning=false"] if stage == "posenet" else []
    recipe = SMALL_BLADE[stage].recipe(tmp_path, *words)
    pictures = recipe.build_dataset().sources[0].people
    pictures.picture_path(len(pictures) - 1).unlink()
    with pytest.raises(DataError, match=rf"1 of {len(pictures)} pictures are missing"):
        recipe.build_dataset()


def test_people_of_other_settings_are_refused(tmp_path: Path) -> None:
    """A control on parallel rays would have been trained on perspective."""
    SMALL_BLADE["depthnet"].recipe(tmp_path).build_dataset()
    control = SMALL_BLADE["depthnet"].recipe(tmp_path, "data.synthetic.orthographic=true")
    with pytest.raises(DataError, match=r"orthographic=False there, True requested.*data\.root"):
        control.build_dataset()
    with pytest.raises(DataError, match=r"people_test\.npz .*orthographic=False there"):
        control.check_evaluation_data()


@pytest.mark.parametrize("framing", ["portrait", "camera"])
def test_depth_crops_are_cut_by_boxes_in_training_and_scores(tmp_path: Path, framing: str) -> None:
    """The box of a portrait is the whole picture; that of others is the person's."""
    recipe = SMALL_BLADE["depthnet"].recipe(tmp_path, f"data.synthetic.framing={framing}")
    recipe.check_evaluation_data()
    settings = recipe.settings
    trained = recipe.build_dataset().sources[0].people
    scored = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
    whole = (16.0, 16.0), 32.0
    for people in (trained, scored):
        squares = [people.square(row, (32, 32)) for row in range(len(people))]
        boxes = people.data.columns["bbox_xywh"][: len(people)]
        assert squares == [box_square(box) for box in boxes]
        assert (squares == [whole] * len(squares)) == (framing == "portrait")
