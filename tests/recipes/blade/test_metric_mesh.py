"""overt/recipes/blade/metric_mesh.py: the published protocols on files of their real sizes."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_files
import torch
from PIL import Image
from small_recipes import SMALL_BLADE, stage_one

from overt.distributed import init_distributed
from overt.errors import DataError
from overt.evaluation import summarize
from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipes.blade.config import PROTOCOLS
from overt.recipes.blade.loss import Weights, pose_losses
from overt.recipes.blade.metric_mesh import MetricMesh
from overt.recipes.blade.pose_recipe import bodies_of, true_rotations
from overt.recipes.blade.pose_scores import Scorer

SCORED = ("spec_mtp_p3", "pdhuman_p5", "humman_p3")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bodies, the three test sets with labels of SMPL, and a stage 1."""
    folder = tmp_path_factory.mktemp("real")
    real_files.write_bodies(folder / "bodies")
    columns = real_files.of_smpl(real_files.rendered(folder))
    for name in SCORED:
        protocol = PROTOCOLS[name]
        images = folder / protocol.images
        shutil.copytree(folder / "datasets" / "people" / "imgs", images / "imgs")
        real_files.write_annotations(folder / protocol.annotations, columns)
    # PDHuman has masks beside its pictures; HuMMan's file tells no camera.
    shutil.copytree(folder / "datasets/people/masks", folder / "datasets/pdhuman/masks")
    blind = {name: value for name, value in columns.items() if name not in ("K", "focal_length")}
    real_files.write_annotations(folder / PROTOCOLS["humman_p3"].annotations, blind)
    stage_one(folder)
    return folder


def overrides(root: Path, dataset: str, **changed: str) -> list[str]:
    bodies = root / "bodies"
    names = {
        "model.body.model": str(bodies / "SMPLX_NEUTRAL.npz"),
        "model.body.smpl": str(bodies / "SMPL_NEUTRAL.pkl"),
        "model.body.smpl_regressor": str(bodies / "J_regressor_extra.npy"),
        "model.body.smpl_joint_regressor": str(bodies / "J_regressor_h36m.npy"),
        "model.body.transfer": str(bodies / "smplx2smpl_deftrafo_setup.pkl"),
    } | changed
    return [
        f"data.root={root}", "data.synthetic=null", "evaluation.camera.iterations=1",
        f"evaluation.dataset={dataset}", f"model.depthnet_checkpoint={stage_one(root)}",
        *(f"{key}={value}" for key, value in names.items()),
    ]  # fmt: skip


def rows(root: Path, dataset: str) -> list[dict[str, Any]]:
    recipe = SMALL_BLADE["posenet"].recipe(root, *overrides(root, dataset))
    recipe.check_evaluation_data()
    with torch.inference_mode():
        return recipe.evaluate_rows(recipe.build_model().eval(), init_distributed("cpu"))


@pytest.mark.parametrize("dataset", SCORED)
def test_a_published_protocol_is_scored(root: Path, dataset: str) -> None:
    """With a mask and a camera all columns; what the truth helped with is named so."""
    people = rows(root, dataset)
    assert len(people) == 2
    scores = summarize(people)
    assert all(math.isfinite(value) for value in scores.values())
    assert {"mpjpe_mm", "pa_mpjpe_mm", "pve_mm", "Tz_m"} <= set(scores)
    camera = {"miou_percent", "focal_percent", "Txy_m", "miou_raw_percent"}
    helped = {f"{name}_true_mask" for name in camera}
    expected = {"pdhuman_p5": camera, "spec_mtp_p3": helped, "humman_p3": set()}[dataset]
    assert expected <= set(scores)
    assert not (camera | helped) - expected & set(scores)
    table = SMALL_BLADE["posenet"].recipe(root).score_table(people, scores)
    assert ("mIoU (true mask)" in table) == (dataset == "spec_mtp_p3")


@pytest.mark.parametrize(
    ("stage", "damage", "message"),
    [
        ("posenet", "picture", r"000001\.jpg: listed in .*p5\.npz \(row 1\) but missing"),
        ("depthnet", "picture", r"000001\.jpg: listed in .*p5\.npz \(row 1\) but missing"),
        ("posenet", "text", r"000001\.jpg: not a readable image"),
        ("posenet", "size", r"000001\.png: the mask has 16 x 32 pixels, its picture 32 x 32"),
        ("posenet", "black", r"000001\.png: the mask is black"),
    ],
)
def test_every_scored_file_is_opened_before_the_first_step(
    root: Path, tmp_path: Path, stage: str, damage: str, message: str
) -> None:
    """Not at the first evaluation, hours into a run; of rows that are not scored nothing is."""
    protocol = PROTOCOLS["pdhuman_p5"]
    for folder in ("preprocessed_datasets", protocol.images):
        shutil.copytree(root / folder, tmp_path / folder)
    images = tmp_path / protocol.images
    picture, mask = images / "imgs" / "000001.jpg", images / "masks" / "000001.png"
    if damage == "picture":
        picture.unlink()
    elif damage == "text":
        picture.write_text("not found")
    else:
        Image.new("L", (16, 32) if damage == "size" else (32, 32)).save(mask)
    words = [f"evaluation.dataset_root={tmp_path}", *overrides(root, "pdhuman_p5")]
    with pytest.raises(DataError, match=message):
        SMALL_BLADE[stage].recipe(root, *only(words, stage)).check_evaluation_data()
    words.append("evaluation.max_samples=1")
    SMALL_BLADE[stage].recipe(root, *only(words, stage)).check_evaluation_data()


def only(words: list[str], stage: str) -> list[str]:
    return [word for word in words if stage == "posenet" or "depthnet_checkpoint" not in word]


def test_bedlamcc_is_scored(root: Path) -> None:
    """A file of torch.save with labels of SMPL-X, pictures in the published folder."""
    columns = real_files.rendered(root)
    protocol = PROTOCOLS["bedlamcc_eval"]
    sequence = root / protocol.images / "png" / "seq_000123"
    shutil.copytree(root / "datasets" / "people" / "imgs", sequence)
    smplx = {
        name.removeprefix("smplx/"): torch.from_numpy(value)[:, None]
        for name, value in columns.items()
        if name.startswith("smplx/")
    }
    content = {
        "img_fn": [f"seq_000123/{Path(str(name)).name}" for name in columns["image_path"]],
        "focal_length": torch.from_numpy(columns["K"][:, 0, 0].copy()),
        "center": torch.full((2, 2), 16.0),
        "scale": torch.full((2,), 32.0),
        "smplx": smplx,
    }
    torch.save(content, root / protocol.annotations)
    scores = summarize(rows(root, "bedlamcc_eval"))
    assert all(math.isfinite(value) for value in scores.values())
    assert {"mpjpe_mm", "pve_mm", "Tz_m", "miou_percent_true_mask"} <= set(scores)


def test_both_stages_train_on_real_layouts(root: Path) -> None:
    """Stage 1 on labels of SMPL, stage 2 on labels of SMPL-X, scored on SPEC-MTP at the end."""
    columns = real_files.rendered(root)
    smplx = {name: value for name, value in columns.items() if not name.startswith("smpl/")}
    for name, labels in {"smpl": real_files.of_smpl(columns), "smplx": smplx}.items():
        real_files.write_annotations(root / f"preprocessed_datasets/train_{name}.npz", labels)
    quick = ["training.batch_size=2", "training.num_steps=1", "evaluation.max_samples=1"]
    quick += ["checkpoint.every_steps=1", "training.num_workers=0"]

    def train(stage: str, labels: str, *more: str) -> dict[str, float]:
        source = f"{{name: pdhuman, annotations: preprocessed_datasets/train_{labels}.npz, "
        source += "images: datasets/pdhuman, weight: 1.0}"
        given = overrides(root, "spec_mtp_p3")
        words = [word for word in given if not word.startswith("model.depthnet_checkpoint")]
        chain = [f"data.sources=[{source}]", f"exp_name=real_{stage}", *quick, *more]
        return SMALL_BLADE[stage].trainer(root, *words, *chain).train()

    depth = train("depthnet", "smpl")
    assert math.isfinite(depth["Tz_m"])
    best = root / "runs" / "real_depthnet" / "checkpoints" / "best"
    pose = train("posenet", "smplx", f"model.depthnet_checkpoint={best}")
    assert math.isfinite(pose["mpjpe_mm"])
    assert math.isfinite(pose["miou_raw_percent_true_mask"])


@pytest.fixture(scope="module")
def scorer(root: Path) -> Scorer:
    recipe = SMALL_BLADE["posenet"].recipe(root, *overrides(root, "spec_mtp_p3"))
    made: Scorer = recipe.scorer(recipe.build_model().eval())
    return made


def test_the_labeled_pose_has_no_error(scorer: Scorer) -> None:
    """The same pose and shape as a body of SMPL-X, taken to SMPL's 6890 vertices."""
    columns, body = scorer.people.data.columns, scorer.body
    assert (len(body.template), len(scorer.mesh.of_labels.template)) == (10475, 6890)
    pose = np.concatenate(
        [columns["smpl/global_orient"][:1], columns["smpl/body_pose"][0, :21]]
    ).astype(np.float32)
    rotations = axis_angle_to_matrix(torch.from_numpy(pose))[None]
    shape = torch.from_numpy(columns["smpl/betas"][:1])
    found = body(shape, rotations)
    truth = scorer.truth(0, scorer.people.picture(0))
    row = scorer.pose_row(found.vertices[0] - found.joints[0, :1], truth)
    assert row["mpjpe_mm"] < 1e-2  # hands differ: SMPL has no fingers, SMPL-X its mean hand
    assert 0 < row["pve_mm"] < 10
    # The pelvis of the labels is the middle of the hips, not the joint that the mesh turns about.
    assert 0.01 < float((truth.pelvis - truth.origin).norm()) < 0.12


def test_shapes_longer_than_those_of_the_body_are_refused_before_the_first_step(
    root: Path,
) -> None:
    path = root / PROTOCOLS["pdhuman_p5"].annotations
    kept = path.read_bytes()
    columns = real_files.of_smpl(real_files.rendered(root))
    columns["smpl/betas"] = np.pad(columns["smpl/betas"], ((0, 0), (0, 6)), constant_values=1.0)
    columns["pelvis"] = columns["smpl/transl"]  # stored, so that no hips are needed
    real_files.write_annotations(path, columns)
    try:
        recipe = SMALL_BLADE["posenet"].recipe(root, *overrides(root, "pdhuman_p5"))
        with pytest.raises(DataError, match=r"betas has 16 .* but model\.body\.smpl has 10; name"):
            recipe.check_evaluation_data()
    finally:
        path.write_bytes(kept)


def test_labels_of_smplx_are_scored_on_the_same_mesh(root: Path, scorer: Scorer) -> None:
    """As those of BEDLAM-CC: without joints of SMPL-X's own, both go to SMPL's mesh."""
    settings = scorer.settings.model.body
    mesh = MetricMesh(scorer.body, settings, labeled_with_smplx=True)
    assert mesh.of_labels is scorer.body
    vertices, joints = mesh.of_truth(scorer.body.template)
    assert (vertices.shape, joints.shape) == ((6890, 3), (17, 3))
    np.testing.assert_allclose(vertices[:2434], scorer.body.template[:2434], atol=1e-6)
    bare = replace(settings, transfer=None)
    with pytest.raises(DataError, match=r"labeled with SMPL-X.*or model\.body\.joint_regressor"):
        MetricMesh(scorer.body, bare, labeled_with_smplx=True)


def test_hands_follow_one_rule(scorer: Scorer) -> None:
    """A label without hands has the mean ones, as a prediction has: equal poses cost nothing."""
    body = scorer.body
    people = scorer.people
    left, right = people.label(0)[2:4]
    assert np.abs(left).max() > 0.1
    np.testing.assert_allclose(np.stack([left, right]), body.hands_mean.numpy(), atol=1e-6)
    pose = torch.zeros(1, 52, 3)
    pose[0, 22:37], pose[0, 37:] = torch.from_numpy(left), torch.from_numpy(right)
    rotations = true_rotations(pose)
    labeled = bodies_of(body, rotations, torch.zeros(1, 10))
    predicted = bodies_of(body, rotations[:, :22], torch.zeros(1, 10))
    terms = pose_losses(predicted, labeled, Weights(0, 0, 1, 5, 5))
    assert float(sum(terms.values())) < 1e-4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model.body.smpl_joint_regressor": "null"}, r"set model\.body\.smpl_joint_regressor "),
        ({"model.body.transfer": "null"}, r"set model\.body\.transfer \(made by `overt data "),
        ({"model.body.transfer": "none.npz"}, r"model\.body\.transfer=none\.npz: the file does"),
        ({"model.body.model": "capsule"}, r"model\.body\.model=capsule is the body of rendered"),
        ({"model.body.model": "anny"}, r"model\.body\.model=anny is the body of rendered people"),
        ({"model.body.smpl": "capsule"}, r"model\.body\.smpl=capsule is the body of rendered"),
        ({"model.body.smpl_regressor": "a.npy"}, r"model\.body\.smpl_regressor=a\.npy: no such"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_before_anything_is_built(
    root: Path, changed: dict[str, str], message: str
) -> None:
    recipe = SMALL_BLADE["posenet"].recipe(root, *overrides(root, "spec_mtp_p3", **changed))
    with pytest.raises(DataError, match=message):
        recipe.check_evaluation_data()


def test_a_regressor_of_smpl_is_not_one_of_smplx(root: Path) -> None:
    wrong = {"model.body.joint_regressor": str(root / "bodies" / "J_regressor_h36m.npy")}
    recipe = SMALL_BLADE["posenet"].recipe(root, *overrides(root, "spec_mtp_p3", **wrong))
    with pytest.raises(DataError, match=r"model\.body\.joint_regressor=.*This one is for SMPL's"):
        recipe.check_evaluation_data()
