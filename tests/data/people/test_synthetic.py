"""Synthetic people: labels reproduce the picture, and row i depends on seed and i alone."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.people.human_data import HumanData
from overt.data.people.scenes import PeopleOptions
from overt.data.people.synthetic import COCO, write_people
from overt.errors import DataError
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body, write_capsule_body
from overt.geometry.camera import project
from overt.geometry.rotation import axis_angle_to_matrix
from overt.geometry.silhouette import part_masks, rasterize

SIZE = 48


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    for framing in ("camera", "portrait"):
        options = PeopleOptions(size=SIZE, seed=3, framing=framing, depth_maps=True, body="capsule")
        write_people(folder, framing, 6, options)
    return folder


def bodies(data: HumanData) -> tuple[BodyModel, torch.Tensor, torch.Tensor]:
    """Vertices and joints in the camera frame, from the stored parameters alone."""
    model = BodyModel(capsule_body())
    names = ("global_orient", "body_pose", "left_hand_pose", "right_hand_pose", "betas", "transl")
    root, body, left, right, shape, place = (
        torch.from_numpy(data.columns[f"smplx/{name}"]) for name in names
    )
    rest = torch.zeros(len(data), 3, 3)
    pose = torch.cat([root[:, None], body, rest, left, right], dim=1)
    made = model(shape, axis_angle_to_matrix(pose))
    return model, made.vertices + place[:, None], made.joints + place[:, None]


@pytest.mark.parametrize("framing", ["camera", "portrait"])
def test_the_labels_reproduce_keypoints_and_masks(root: Path, framing: str) -> None:
    data = HumanData.load(root / "preprocessed_datasets" / f"{framing}.npz")
    model, vertices, joints = bodies(data)
    matrix, none = torch.from_numpy(data.columns["K"]), torch.zeros(len(data), 3)
    pixels, depth = project(vertices, none, matrix)
    seen, _ = project(joints, none, matrix)
    stored = torch.from_numpy(data.columns["keypoints2d"])
    torch.testing.assert_close(stored[:, 17:, :2], seen[:, :22], atol=1e-2, rtol=1e-4)
    limbs = [joint for joint in COCO if joint >= 0]
    kept = [number for number, joint in enumerate(COCO) if joint >= 0]
    torch.testing.assert_close(stored[:, kept, :2], seen[:, limbs], atol=1e-2, rtol=1e-4)
    raster = rasterize(pixels, depth, model.faces, (SIZE, SIZE))
    parts = part_masks(raster, model.faces, model.part).numpy()
    for row in range(len(data)):
        folder = root / "datasets" / framing
        mask = np.asarray(Image.open(folder / "masks" / f"{row:06d}.png"))
        both, either = ((mask > 0) & (parts[row] > 0)).sum(), ((mask > 0) | (parts[row] > 0)).sum()
        assert both > 0.97 * either
        metres = np.asarray(Image.open(folder / "depth" / f"{row:06d}.png")) / 1000
        near = torch.where(raster.mask[row], raster.depth[row], 0.0).numpy()
        agree = np.abs(metres - near) < 0.01
        assert agree.mean() > 0.98


def test_portraits_show_the_whole_person_in_the_middle(root: Path) -> None:
    data = HumanData.load(root / "preprocessed_datasets" / "portrait.npz")
    _, vertices, _ = bodies(data)
    pixels, _ = project(vertices, torch.zeros(len(data), 3), torch.from_numpy(data.columns["K"]))
    low, high = pixels.amin(1), pixels.amax(1)
    torch.testing.assert_close(
        (high - low).amax(1), torch.full((6,), SIZE / 1.1), atol=0.05, rtol=0
    )
    middle = torch.full((6, 2), SIZE / 2)
    torch.testing.assert_close((low + high) / 2, middle, atol=0.1, rtol=0)


def test_a_row_depends_on_seed_and_number_alone(root: Path, tmp_path: Path) -> None:
    options = PeopleOptions(size=SIZE, seed=3, framing="portrait", depth_maps=True, body="capsule")
    again = write_people(tmp_path, "portrait", 6, options)
    first = root / "preprocessed_datasets" / "portrait.npz"
    assert again.read_bytes() == first.read_bytes()
    fewer = HumanData.load(write_people(tmp_path, "fewer", 3, options))
    for name, column in HumanData.load(first).columns.items():
        if name != "image_path":
            np.testing.assert_allclose(fewer.columns[name], column[:3], atol=1e-4)
    other = PeopleOptions(size=SIZE, seed=4, framing="portrait", body="capsule")
    assert write_people(tmp_path, "other", 6, other).read_bytes() != first.read_bytes()


def test_an_unknown_subset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="allowed: all, p3, p5, far"):
        write_people(tmp_path, "x", 1, PeopleOptions(subset="p9"))
    with pytest.raises(DataError, match="allowed: camera and portrait"):
        write_people(tmp_path, "x", 1, PeopleOptions(framing="wide"))


def test_only_bodies_of_rendered_people_are_rendered(tmp_path: Path) -> None:
    """Training would take people of another body for dressed ones of anny."""
    write_capsule_body(tmp_path / "SMPLX_NEUTRAL.npz")  # which, as a file, has no mark
    options = PeopleOptions(size=SIZE, body=str(tmp_path / "SMPLX_NEUTRAL.npz"))
    with pytest.raises(DataError, match=r"NEUTRAL\.npz: not a body for rendered people; use caps"):
        write_people(tmp_path, "x", 1, options)
    assert not (tmp_path / "datasets").exists()


def test_backgrounds_are_for_dressed_people(tmp_path: Path) -> None:
    options = PeopleOptions(body="capsule", backgrounds=str(tmp_path))
    with pytest.raises(DataError, match=r"people of the body capsule have none; use the body anny"):
        write_people(tmp_path, "x", 1, options)
    options = PeopleOptions(body="anny", backgrounds=str(tmp_path / "none"))
    with pytest.raises(DataError, match="none: no such folder"):
        write_people(tmp_path, "x", 1, options)


def test_a_set_that_was_interrupted_is_rendered_again(tmp_path: Path) -> None:
    options = PeopleOptions(size=16, body="capsule")
    path = write_people(tmp_path, "set", 1, options)
    first, masks = path.read_bytes(), tmp_path / "datasets" / "set" / "masks"
    path.unlink()
    (masks / f".000000.png.{socket.gethostname()}-4194305-00000000-0.partial").touch()
    assert write_people(tmp_path, "set", 1, options).read_bytes() == first
    assert [mask.name for mask in masks.iterdir()] == ["000000.png"]


@pytest.mark.parametrize(
    ("count", "changed", "message"),
    [
        (
            2,
            {},
            r"set\.npz .*\(count=1 there, 2 requested\).* remove .*set\.npz and .*datasets/set",
        ),
        (1, {"orthographic": True}, "orthographic=False there, True requested"),
        (1, {"size": 24, "seed": 5}, "size=16 there, 24 requested, seed=0 there, 5 requested"),
    ],
)
def test_sets_of_other_settings_are_not_mixed(
    count: int, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    options = PeopleOptions(size=16, body="capsule")
    path = write_people(tmp_path, "set", 1, options)
    before = path.read_bytes()
    write_people(tmp_path, "set", 1, options)
    with pytest.raises(DataError, match=message):
        write_people(tmp_path, "set", count, replace(options, **changed))
    assert path.read_bytes() == before


def test_files_of_others_are_not_written_over(tmp_path: Path) -> None:
    options = PeopleOptions(size=16, body="capsule")
    annotations = tmp_path / "preprocessed_datasets" / "pdhuman_test_p5.npz"
    annotations.parent.mkdir()
    annotations.write_text("precious")
    with pytest.raises(DataError, match=r"p5\.npz exists and is not known .* nothing is written"):
        write_people(tmp_path, "pdhuman_test_p5", 1, options)
    assert annotations.read_text() == "precious"
    picture = tmp_path / "datasets" / "pdhuman" / "imgs" / "000000.jpg"
    picture.parent.mkdir(parents=True)
    picture.write_text("precious")
    with pytest.raises(DataError, match="pdhuman exists and was not made by this command"):
        write_people(tmp_path, "pdhuman", 1, options)
    assert picture.read_text() == "precious"
