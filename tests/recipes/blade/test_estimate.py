"""The crops of `overt estimate` are those of training, and its camera shows the person there."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from real_files import write_dressed_body
from small_recipes import SMALL_BLADE
from torch import Tensor

from overt.data.people.crops import Crop
from overt.data.people.live import Shots
from overt.data.rng import sample_rng
from overt.errors import DataError
from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipes.blade.camera import LIMB_JOINTS
from overt.recipes.blade.estimate import (
    FEWEST_FOUND,
    ROOM,
    TOGETHER,
    WIDEST,
    _cut,
    _sightings,
    _smooth_cut,
    estimate_person,
    limb_pixels,
    mesh_box,
)
from overt.recipes.blade.live import LiveBatch
from overt.recipes.blade.posenet import PoseOutput
from overt.recipes.blade.search import CLOSER_ALONE
from overt.recipes.blade.silhouette import true_silhouettes

SIZE = 64
CORNER_XY = (150, 40)  # of the person's crop in the photograph
# Neutral film, and crops as large as those of a box.
PLAIN = (
    f"data.synthetic.size={SIZE}", f"data.depth_size={SIZE}", f"data.pose_size={SIZE}",
    "data.synthetic.fixed_colors=false", "data.synthetic.live=true",
    "data.synthetic.live_framing=photograph", "model.tz_conditioning=false",
    f"data.synthetic.photograph.margin=[{ROOM},{ROOM}]", "data.synthetic.photograph.shift=0",
    "data.synthetic.photograph.whole=0", "data.synthetic.photograph.border=0",
    "evaluation.camera.size=400", "evaluation.search_scales=1",
)  # fmt: skip


class PerfectModel:
    """Returns the truth about one person, and remembers what it was shown."""

    depthnet = object()

    def __init__(self, batch: LiveBatch, shots: Shots) -> None:
        people = batch.people.people
        keypoints = shots.joints[:, LIMB_JOINTS, :2] / SIZE
        visible = 10 * shots.joints[:, LIMB_JOINTS, 2] - 5
        rotations = axis_angle_to_matrix(people.pose[:, :22])
        self.truth = PoseOutput(rotations, people.shape, shots.depth, keypoints, visible)
        self.crops: list[tuple[Tensor, Tensor]] = []

    def __call__(self, depth_crops: Tensor, pose_crops: Tensor) -> PoseOutput:
        self.crops.append((depth_crops, pose_crops))
        count = len(pose_crops)
        parts = [
            None if part is None else part.expand(count, *part.shape[1:]) for part in self.truth
        ]
        return PoseOutput(*parts)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Any]:
    """Return recipes in which nobody, and everybody, is cut off."""
    root = tmp_path_factory.mktemp("estimate")
    body = write_dressed_body(root / "body.npz")
    given = [f"data.synthetic.body={body}", f"model.body.model={body}", *PLAIN]
    return {
        cut: SMALL_BLADE["posenet"].recipe(root, *given, f"data.synthetic.photograph.cut={cut}")
        for cut in (0.0, 1.0)
    }


def shot_person(recipe: Any, index: int) -> tuple[LiveBatch, Shots, np.ndarray]:
    """Return one sampled person, the rendered crop, and the box of what it shows."""
    batch = recipe.collate([recipe.build_dataset().sample(index, sample_rng(0, 0, index))])
    shots = recipe.live.studio(torch.device("cpu")).shoot(batch.people)
    scene = recipe.live.studio(torch.device("cpu")).scene(batch.people)
    image = scene.vertices[0] @ scene.matrix[0].T
    pixels = (image[:, :2] / image[:, 2:]).numpy()
    low, high = pixels.min(0), pixels.max(0)
    window = batch.people.photos.window[0].numpy()
    first, last = low + window[:2] * (high - low), low + window[2:] * (high - low)
    return batch, shots, np.concatenate([first, last - first])


@pytest.mark.parametrize(("cut", "index"), [(0.0, 4), (1.0, 1)])
def test_a_box_gives_the_crop_of_training(
    recipes: dict[float, Any], cut: float, index: int
) -> None:
    """A rendered crop in a large picture, given its box, reaches the model pixel by pixel."""
    recipe = recipes[cut]
    batch, shots, box = shot_person(recipe, index)
    picture = np.zeros((160, 260, 3), np.uint8)
    x, y = CORNER_XY
    crop = shots.pictures[0].permute(1, 2, 0).numpy()
    picture[y : y + SIZE, x : x + SIZE] = crop
    model: Any = PerfectModel(batch, shots)
    body = recipe.body(torch.device("cpu"))
    box[:2] += CORNER_XY
    person = estimate_person(model, body, recipe.settings, picture, box=box)
    for cropped in model.crops[0]:  # both networks were trained on the same crop
        seen = cropped[0].permute(1, 2, 0).numpy()
        assert np.abs(seen.astype(int) - crop).mean() < 1.0
    joints = person.joints[list(LIMB_JOINTS)]
    pixels = person.focal * joints[:, :2] / joints[:, 2:] + person.centre
    is_visible = shots.joints[0, LIMB_JOINTS, 2].numpy() > 0
    true = shots.joints[0, LIMB_JOINTS, :2].numpy() + CORNER_XY
    assert is_visible.sum() >= FEWEST_FOUND
    # The crop is far from the middle of the picture, so the person is seen a little from the side.
    assert np.abs(pixels - true)[is_visible].max() < 0.05 * SIZE


def test_large_photographs_reach_the_model_without_aliasing(recipes: dict[float, Any]) -> None:
    recipe = recipes[0.0]
    batch, shots, _ = shot_person(recipe, 2)
    model: Any = PerfectModel(batch, shots)
    fine = (np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, 2)
    box = np.array([0, 0, 256, 256], np.float32)
    estimate_person(model, recipe.body(torch.device("cpu")), recipe.settings, fine, box=box)
    for cropped in model.crops[0]:
        middle = cropped[0, :, 16:-16, 16:-16].float()
        assert (middle - 127).abs().max() < 30


def test_small_people_are_far_away(recipes: dict[float, Any]) -> None:
    """The angle of view of the photograph stays that of a camera, whatever the crop says."""
    recipe = recipes[0.0]
    batch, shots, box = shot_person(recipe, 2)
    picture = np.zeros((320, 200, 3), np.uint8)
    model: Any = PerfectModel(batch, shots)
    body = recipe.body(torch.device("cpu"))
    box[:2] += (20, 240)
    person = estimate_person(model, body, recipe.settings, picture, box=box)
    assert person.focal > 0.9 * 320 / WIDEST
    assert person.pelvis[2] > 2 * float(shots.depth)


def test_without_a_box_the_crop_is_around_the_mesh(recipes: dict[float, Any]) -> None:
    recipe = recipes[0.0]
    batch, shots, _ = shot_person(recipe, 2)
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    picture[:] = shots.pictures[0].permute(1, 2, 0).numpy()
    model: Any = PerfectModel(batch, shots)
    estimate_person(model, recipe.body(torch.device("cpu")), recipe.settings, picture)
    assert len(model.crops) == 1 + CLOSER_ALONE  # the whole picture, then each crop once
    whole, *_, last = (crops[1][0].float() for crops in model.crops)
    assert torch.equal(whole.byte(), shots.pictures[0])
    # The person fills 1 / ROOM of the picture: the crop around it is the picture again.
    assert (whole - last).abs().mean() < 12
    mask = np.zeros((SIZE, SIZE), bool)
    mask[10:50, 20:40] = True
    estimate_person(model, recipe.body(torch.device("cpu")), recipe.settings, picture, mask)
    assert len(model.crops) == 1 + CLOSER_ALONE + 1  # the mask tells where the person is


def test_what_windows_show_is_in_pixels_of_the_picture(recipes: dict[float, Any]) -> None:
    recipe = recipes[0.0]
    batch, shots, box = shot_person(recipe, 4)
    model: Any = PerfectModel(batch, shots)
    body, picture = recipe.body(torch.device("cpu")), np.zeros((300, 500, 3), np.uint8)
    crops = [Crop((150 + 32.0, 40 + 32.0), float(SIZE)), Crop((200.0, 150.0), 2.0 * SIZE)]
    seen = _sightings(TOGETHER * crops, model, body, recipe.settings, picture)
    assert [len(inputs) for _, inputs in model.crops] == [TOGETHER, TOGETHER]
    limbs = shots.joints[0, LIMB_JOINTS, :2].numpy()
    np.testing.assert_allclose(seen.limbs[0], limbs + np.array([150, 40]), atol=0.01)
    np.testing.assert_allclose(seen.limbs[1], 2 * limbs + np.array([136, 86]), atol=0.01)
    np.testing.assert_allclose(seen.boxes[0], box + np.array([150, 40, 0, 0]), atol=0.05 * SIZE)
    np.testing.assert_allclose(seen.torsos[1], 2 * seen.torsos[0], rtol=1e-4)
    np.testing.assert_allclose(seen.windows[-1], [200, 150, 2 * SIZE])
    model.truth = model.truth._replace(visible=None)  # without model.keypoint_visibility
    seen = _sightings(crops, model, body, recipe.settings, picture)
    np.testing.assert_array_equal(seen.visible, np.ones((2, 12)))


def test_the_silhouette_of_the_model_refines_the_camera(recipes: dict[float, Any]) -> None:
    """Limbs that are found too far apart: the own silhouette corrects most of what follows."""
    recipe, settings = recipes[0.0], deepcopy(recipes[0.0].settings)
    batch, shots, box = shot_person(recipe, 4)
    picture = np.ascontiguousarray(shots.pictures[0].permute(1, 2, 0).numpy())
    body = recipe.body(torch.device("cpu"))
    model: Any = PerfectModel(batch, shots)
    settings.evaluation.camera.iterations = 60
    settings.evaluation.camera.keypoint_weight = 0.0  # after the start
    true = estimate_person(model, body, settings, picture, box=box).focal
    limbs = torch.cat([model.truth.keypoints, shots.joints[:, LIMB_JOINTS, 2:]], dim=-1)
    person = (model.truth.rotations, model.truth.shape, model.truth.depth)
    masks, known = true_silhouettes(body, *person, limbs, torch.full((1, 2), 0.5), SIZE)
    assert known.all()
    middle = limbs[..., :2].mean(1, keepdim=True)
    wrong = middle + 1.2 * (limbs[..., :2] - middle)
    model.truth = model.truth._replace(keypoints=wrong)
    alone = estimate_person(model, body, settings, picture, box=box).focal
    assert abs(alone - true) > 0.15 * true
    model.truth = model.truth._replace(silhouette=torch.where(masks, 9.0, -9.0))
    refined = estimate_person(model, body, settings, picture, box=box).focal
    assert abs(refined - true) < 0.4 * abs(alone - true)


def test_a_model_that_predicts_no_numbers_is_refused(recipes: dict[float, Any]) -> None:
    recipe = recipes[0.0]
    model: Any = PerfectModel(*shot_person(recipe, 2)[:2])
    model.truth = model.truth._replace(depth=model.truth.depth * np.nan)
    body, picture = recipe.body(torch.device("cpu")), np.zeros((SIZE, SIZE, 3), np.uint8)
    with pytest.raises(DataError, match=r"predicts non-finite numbers .* another --checkpoint"):
        estimate_person(model, body, recipe.settings, picture)


@pytest.mark.parametrize("factor", [3, 4])
def test_large_photographs_are_cut_without_aliasing(factor: int) -> None:
    """A pattern of single pixels is gray, and what is seen stays where it was."""
    small = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    large = small.repeat(factor, 0).repeat(factor, 1)
    x, y = (factor * (position + 0.5) - 0.5 for position in (22.0, 18.0))
    seen = _smooth_cut(large, Crop((x, y), 24.0 * factor), 24)
    expected = _cut(small, Crop((22.0, 18.0), 24.0), 24)
    assert (seen.int() - expected.int()).abs().max() <= 1
    fine = (np.indices((120, 120)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, 2)
    middle = _smooth_cut(fine, Crop((60.0, 60.0), 80.0), 20)[0, :, 2:-2, 2:-2].float()
    assert (middle - 127).abs().max() < 30
    aliased = _cut(fine, Crop((60.0, 60.0), 80.0), 20)[0, :, 2:-2, 2:-2].float()
    assert (aliased - 127).abs().max() > 100


def test_the_box_of_a_mesh_stays_in_the_picture() -> None:
    inside = np.array([[10.0, 20.0], [60.0, 90.0]])
    np.testing.assert_allclose(mesh_box(inside, (100, 200)), [10, 20, 50, 70])
    cut = np.array([[-40.0, 20.0], [60.0, 190.0]])
    np.testing.assert_allclose(mesh_box(cut, (100, 200)), [0, 20, 60, 80])
    outside = np.array([[500.0, 50.0], [600.0, 51.0]])
    np.testing.assert_allclose(mesh_box(outside, (100, 200)), [193.75, 47.375, 6.25, 6.25])


def test_only_visible_keypoints_count(recipes: dict[float, Any]) -> None:
    batch, shots, _ = shot_person(recipes[0.0], 2)
    truth = PerfectModel(batch, shots).truth
    crop, device = Crop((100.0, 80.0), 64.0), torch.device("cpu")
    hidden = truth._replace(visible=torch.linspace(-6, 5, 12)[None])
    assert limb_pixels(hidden, crop, None, device)[1].sum() == 5
    unlikely = truth._replace(visible=torch.linspace(-9, -1, 12)[None])
    assert limb_pixels(unlikely, crop, None, device)[1].sum() == FEWEST_FOUND
    without = truth._replace(visible=None)
    assert limb_pixels(without, crop, None, device)[1].all()
