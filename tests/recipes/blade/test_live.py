"""Live people as training samples: the same crops and labels as of written people."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from real_files import write_dressed_body
from small_recipes import SMALL_BLADE

from overt.config import load
from overt.data.people.crops import draw_change
from overt.data.people.live import draw_live
from overt.data.rng import sample_rng
from overt.errors import ConfigError
from overt.nested import map_tensors, tensors_in
from overt.recipes.blade.camera import LIMB_JOINTS
from overt.recipes.blade.data import collate_depth, collate_pose, people_options
from overt.recipes.blade.live import LiveSample
from overt.recipes.blade.pretext_recipe import collate_maps

ROWS = range(6)
SIZES = (
    "data.synthetic.train=6",
    "data.synthetic.test=2",
    "data.synthetic.fixed_colors=false",
)
AUGMENTED = tuple(
    f"data.{stage}_augmentation.{name}={value}"
    for stage in ("depth", "pose")
    for name, value in (
        ("mirror", 0.5),
        ("rotation", 30),
        ("rotation_probability", 0.7),
        ("scale", 0.2),
        ("shift", 0.1),
        ("shift_probability", 0.7),
    )
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    write_dressed_body(folder / "body.npz")
    return folder


def words(root: Path, *more: str) -> list[str]:
    body = root / "body.npz"
    return [f"data.synthetic.body={body}", f"model.body.model={body}", *SIZES, *more]


@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_crops_and_labels_are_those_of_written_people(root: Path, stage: str) -> None:
    given = words(root, "data.synthetic.framing=camera", *AUGMENTED)
    if stage == "posenet":
        given += ["model.tz_conditioning=false", "data.pose_side=[0.9,0.3]"]
    source = SMALL_BLADE[stage].recipe(root, *given).build_dataset().sources[0]
    recipe = SMALL_BLADE[stage].recipe(root, *given, "data.synthetic.live=true")
    people = recipe.build_dataset()
    drawn, written, mirrored = [], [], set()
    for row in ROWS:
        person = draw_live(sample_rng(0, 0, row), people.rest_joints, 32, people.photographs)
        if abs(person.sketch.person.depth - float(source.people.pelvis(row)[2])) > 1e-4:
            continue  # too near: sampled again before it was written
        written.append(source.sample(row, sample_rng(7, 0, row)))
        rng = sample_rng(7, 0, row)
        side = 0.9 + 0.3 * rng.random() if stage == "posenet" else 1.0
        change = draw_change(people.augmentation, rng)
        mirrored.add(change.mirrored)
        drawn.append(LiveSample(person, change._replace(factor=side * change.factor)))
    assert len(drawn) > 3
    assert mirrored == {True, False}
    expected = (collate_depth if stage == "depthnet" else collate_pose)(written)
    made = recipe.on_device(recipe.collate(drawn))
    for values, truth in zip(tensors_in(made), tensors_in(expected), strict=True):
        assert (values.dtype, values.shape) == (truth.dtype, truth.shape)
        if values.dtype == torch.uint8:  # the written ones were compressed
            assert (values.int() - truth.int()).abs().float().mean() < 8
        else:
            torch.testing.assert_close(values, truth, atol=2e-4, rtol=1e-4)


def test_depth_maps_are_those_of_written_people(root: Path) -> None:
    given = words(
        root,
        "data.synthetic.framing=portrait",
        "data.synthetic.depth_maps=true",
        f"data.root={root / 'maps'}",
        "data.synthetic.size=48",
        "data.depth_size=70",
        "model.depth.encoder=custom",
        *AUGMENTED,
    )
    source = SMALL_BLADE["pretext"].recipe(root, *given).build_dataset()
    recipe = SMALL_BLADE["pretext"].recipe(root, *given, "data.synthetic.live=true")
    people = recipe.build_dataset()
    drawn, written = [], []
    for row in ROWS:
        person = draw_live(sample_rng(0, 0, row), people.rest_joints, 48, people.photographs)
        if abs(person.sketch.person.depth - float(source.people.pelvis(row)[2])) > 1e-4:
            continue  # too near: sampled again before it was written
        written.append(source.sample(row, sample_rng(7, 0, row)))
        drawn.append(LiveSample(person, draw_change(people.augmentation, sample_rng(7, 0, row))))
    assert len(drawn) > 3
    batch = recipe.collate(drawn)
    assert recipe.counts(batch)["pixels"] == len(drawn) * 70**2
    made, expected = recipe.on_device(batch), collate_maps(written)
    assert (made.images.int() - expected.images.int()).abs().float().mean() < 8
    differing = (made.depth - expected.depth).abs() > 2e-3  # millimeters were written
    assert differing.float().mean() < 0.01  # pixels between two
    assert 0.05 < (made.depth > 0).float().mean() < 0.9


def test_a_sample_is_a_function_of_its_generator(root: Path) -> None:
    recipe = SMALL_BLADE["depthnet"].recipe(root, *words(root, "data.synthetic.live=true"))
    people = recipe.build_dataset()
    assert len(people) == 6
    first, again, other = (
        recipe.collate([people.sample(0, sample_rng(seed, 0, 0))]) for seed in (0, 0, 1)
    )
    for values, repeated in zip(tensors_in(first), tensors_in(again), strict=True):
        assert torch.equal(values, repeated)
    pose = other.people.people.pose[0, 1:22].numpy()
    assert not np.allclose(first.people.people.pose[0, 1:22], pose)
    recipe.on_device(first)
    assert recipe.live.studios
    assert not pickle.loads(pickle.dumps(recipe.live)).studios  # not for loader processes
    # A run with the seed of the test set does not train on it.
    test_person = draw_live(sample_rng(1, 0, 0), people.rest_joints, 32, people.photographs)
    assert not np.allclose(test_person.sketch.person.body, pose)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_a_gpu_renders_the_same_bits(root: Path, stage: str) -> None:
    """With training.deterministic=true: normals are sums over faces, in any order otherwise."""
    given = words(root, "data.synthetic.live=true", *AUGMENTED)
    if stage == "posenet":
        given.append("model.tz_conditioning=false")
    recipe = SMALL_BLADE[stage].recipe(root, *given)
    people = recipe.build_dataset()
    samples = [people.sample(row, sample_rng(0, 0, row)) for row in ROWS]
    batch = map_tensors(recipe.collate(samples), lambda tensor: tensor.cuda())
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, second = recipe.on_device(batch), recipe.on_device(batch)
    finally:
        torch.use_deterministic_algorithms(before)
    for values, repeated in zip(tensors_in(first), tensors_in(second), strict=True):
        assert torch.equal(values, repeated)


def test_both_stages_train_without_training_files(root: Path, tmp_path: Path) -> None:
    given = words(root, "data.synthetic.live=true", "training.num_steps=2", "training.batch_size=2")
    maps = ("data.synthetic.depth_maps=true", "data.depth_size=42", "model.depth.encoder=custom")
    SMALL_BLADE["pretext"].train(tmp_path, *given, *maps)
    run = SMALL_BLADE["depthnet"].train(tmp_path, *given)
    checkpoint = f"model.depthnet_checkpoint={run / 'checkpoints' / 'best'}"
    parallel = ("data.synthetic.orthographic=true", f"data.root={tmp_path / 'parallel'}")
    trainer = SMALL_BLADE["posenet"].trainer(tmp_path, *given, checkpoint, *parallel)
    scores = trainer.train()
    assert np.isfinite(scores["mpjpe_mm"])
    written = [path.name for path in tmp_path.rglob("preprocessed_datasets/*.npz")]
    assert written == ["people_test.npz"] * 2


def test_photographs_are_crops_already(root: Path, tmp_path: Path) -> None:
    """Both stages see the picture as it is framed; the test set stays as it was."""
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    Image.fromarray(np.full((40, 40, 3), 90, np.uint8)).save(photographs / "gray.png")
    framed = words(
        root,
        "data.synthetic.live=true",
        "data.synthetic.live_framing=photograph",
        f"data.synthetic.live_backgrounds={photographs}",
        "data.synthetic.live_background_fraction=0.5",
        "model.tz_conditioning=false",
        "data.pose_augmentation.noise=0",
        "data.pose_augmentation.mirror=0",
    )
    recipe = SMALL_BLADE["posenet"].recipe(root, *framed)
    people = recipe.build_dataset()
    sampled = recipe.collate([people.sample(row, sample_rng(0, 0, row)) for row in range(20)])
    assert 0 < sampled.people.surroundings.backdrop.is_photograph.sum() < 20
    batch = recipe.on_device(sampled)
    assert torch.equal(batch.depth_images, batch.pose_images)
    studio = recipe.live.studio(torch.device("cpu"))
    assert studio.options.framing == "photograph"
    shots = studio.shoot(sampled.people)
    limbs = shots.joints[:, LIMB_JOINTS]
    torch.testing.assert_close(batch.keypoints[..., :2], limbs[..., :2] / 32, atol=1e-4, rtol=0)
    is_visible = (limbs[..., 2] > 0) & ((limbs[..., :2] > 0).all(-1))
    assert torch.equal(batch.keypoints[..., 2] > 0, is_visible)
    assert 0.3 < is_visible.float().mean() < 0.98
    torch.testing.assert_close(batch.depth, shots.depth)
    assert people_options(recipe.settings.data.synthetic, 0).framing == "portrait"
    assert people_options(recipe.settings.data.synthetic, 0).backgrounds is None


def test_both_stages_train_on_photographs(root: Path, tmp_path: Path) -> None:
    given = words(root, "data.synthetic.live=true", "data.synthetic.live_framing=photograph")
    given += ["training.num_steps=2", "training.batch_size=2"]
    run = SMALL_BLADE["depthnet"].train(tmp_path, *given)
    checkpoint = f"model.depthnet_checkpoint={run / 'checkpoints' / 'best'}"
    trainer = SMALL_BLADE["posenet"].trainer(
        tmp_path, *given, checkpoint, "model.keypoint_visibility=true"
    )
    assert np.isfinite(trainer.train()["mpjpe_mm"])


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [
        ("blade_depthnet_tiny", ["data.synthetic.photograph.cut=2"], "photograph.cut"),
        ("blade_depthnet_tiny", ["data.synthetic.photograph.margin=[2,1]"], "photograph.margin"),
        ("blade_depthnet_tiny", ["data.synthetic.live_framing=film"], "live_framing"),
        ("blade_depthnet_tiny", ["data.synthetic.body=null"], "only dressed people"),
    ],
)
def test_what_cannot_be_rendered_live_is_refused(
    recipe: str, more: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load([f"recipe={recipe}", "data.synthetic.body=anny", "data.synthetic.live=true", *more])


@pytest.mark.parametrize("key", ["live_framing=photograph", "live_backgrounds=folder"])
def test_settings_of_live_people_need_live_people(key: str) -> None:
    with pytest.raises(ConfigError, match=r"set data\.synthetic\.live=true, or leave it null"):
        load(["recipe=blade_depthnet_tiny", f"data.synthetic.{key}"])


def test_one_body_and_one_source(root: Path) -> None:
    live = words(root, "data.synthetic.live=true")
    small = SMALL_BLADE["pretext"]
    with pytest.raises(ConfigError, match=r"depth_maps=false: the pretext needs the depth"):
        small.recipe(root, *live, "data.synthetic.depth_maps=false")
    with pytest.raises(ConfigError, match="name the same body for both"):
        SMALL_BLADE["depthnet"].recipe(root, *live, "model.body.model=anny").build_dataset()
    with pytest.raises(ConfigError, match=r"body=anny, but model\.body\.model=capsule: people are"):
        SMALL_BLADE["depthnet"].recipe(root, "data.synthetic.body=anny")  # nothing is rendered
    settings = SMALL_BLADE["depthnet"].config(root, *live).settings.data
    with pytest.raises(ConfigError, match=r"with 2 data\.sources"):
        dataclasses.replace(settings, sources=2 * settings.sources)
