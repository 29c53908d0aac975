"""`overt estimate`: from a picture to mesh, camera and overlay, by command and by call."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_BLADE, stage_one

from overt.commands.estimate import Estimator, estimate, main, read_picture, read_rows
from overt.data.people.human_data import HumanData
from overt.errors import ConfigError, DataError
from overt.recipes.blade.data import whole_crop
from overt.recipes.blade.estimate import _look_twice


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blade")
    SMALL_BLADE["posenet"].train(folder, f"model.depthnet_checkpoint={stage_one(folder)}")
    return folder


def checkpoint(root: Path) -> Path:
    return root / "runs" / "posenet" / "checkpoints" / "best"


def picture(root: Path) -> Path:
    return root / "people" / "datasets" / "people_test" / "imgs" / "000000.jpg"


def limbs(root: Path) -> np.ndarray:
    data = HumanData.load(root / "people" / "preprocessed_datasets" / "people_test.npz")
    return data.columns["keypoints2d"][0, 5:17]


@pytest.mark.parametrize("kind", ["obj", "ply"])
def test_the_command_writes_mesh_camera_and_picture(
    root: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(picture(root)), "--checkpoint", str(checkpoint(root)), "--format", kind]
    assert main([*words, "--output", str(tmp_path)]) == 0
    assert "focal length" in capsys.readouterr().out
    camera = json.loads((tmp_path / "camera.json").read_text())
    assert camera["image_height_width"] == [32, 32]
    assert 0 < camera["pelvis"][2] < 10
    assert np.shape(camera["smplx"]["body_pose"]) == (21, 3)
    assert (tmp_path / f"mesh.{kind}").stat().st_size > 10_000
    assert Image.open(tmp_path / "overlay.png").size == (32, 32)


def test_the_call_finds_a_camera_that_shows_the_keypoints(root: Path) -> None:
    """With the true mask and keypoints the mesh lies over the person."""
    mask = root / "people" / "datasets" / "people_test" / "masks" / "000000.png"
    found = estimate(
        read_picture(picture(root)), checkpoint(root), mask=mask, keypoints=limbs(root),
        overrides=["evaluation.camera.iterations=5"],
    )  # fmt: skip
    x, y = found.centre
    pixels = found.focal * found.vertices[:, :2] / found.vertices[:, 2:] + (x, y)
    person = np.argwhere(np.asarray(Image.open(mask)) > 0)[:, ::-1]
    assert np.abs(pixels.mean(0) - person.mean(0)).max() < 6
    assert (found.overlay != read_picture(picture(root))).any()
    np.testing.assert_allclose(found.joints[0], found.pelvis, atol=1e-5)


def test_wrong_inputs_are_explained(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the mask is \(8, 8\) with 64 pixels set; it must be"):
        estimate(picture(root), checkpoint(root), mask=np.ones((8, 8)))
    with pytest.raises(DataError, match="with 0 pixels set"):
        estimate(picture(root), checkpoint(root), mask=np.zeros((32, 32)))
    with pytest.raises(DataError, match="12 rows of x, y and confidence"):
        estimate(picture(root), checkpoint(root), keypoints=np.ones((3, 2)))
    with pytest.raises(DataError, match="cannot be read"):
        estimate(tmp_path / "none.jpg", checkpoint(root))
    with pytest.raises(DataError, match=r"\(H, W, 3\) uint8"):
        read_picture(np.zeros((4, 4)))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match="not a JSON list"):
        read_rows(tmp_path / "bad.json", "--keypoints")
    with pytest.raises(DataError, match=r"expected rows of x, y, width and height, got \(1, 2\)"):
        Estimator(checkpoint(root)).people(picture(root), boxes=np.ones(2))
    with pytest.raises(ConfigError, match="--mask belongs to one picture, but 2 are given"):
        main(["a.jpg", "b.jpg", "--checkpoint", "c", "--mask", "m.png"])
    with pytest.raises(ConfigError, match=r"a/x\.jpg and b/x\.png would both be .* x_person"):
        main(["a/x.jpg", "b/x.png", "--checkpoint", "c"])
    with pytest.raises(ConfigError, match="needs a picture"):
        main(["training.device=cpu", "--checkpoint", "c"])


def test_several_people_and_pictures(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes name people, each with a folder; pictures follow each other with one model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boxes.json").write_text("[[2, 2, 14, 28], [16, 4, 14, 26]]")
    words = ["--checkpoint", str(checkpoint(root)), "evaluation.camera.iterations=0"]
    assert main([str(picture(root)), *words, "--boxes", "boxes.json", "--format", "glb"]) == 0
    assert capsys.readouterr().out.count("focal length") == 2
    folder = tmp_path / "000000_person"
    depths = []
    for number in range(2):
        own = folder / f"person_{number}"
        assert (own / "mesh.glb").read_bytes()[:4] == b"glTF"
        assert "<canvas" in (own / "view.html").read_text()
        depths.append(json.loads((own / "camera.json").read_text())["pelvis"][2])
    assert depths[0] >= depths[1]  # the nearest one last
    assert Image.open(folder / "overlay.png").size == (32, 32)
    other = picture(root).with_name("000001.jpg")
    assert main([str(picture(root)), str(other), *words, "--output", "all"]) == 0
    assert (tmp_path / "all" / "000001_person" / "mesh.obj").is_file()


def test_the_second_look_is_closer(root: Path) -> None:
    """A person in a corner of a large picture: the crops follow the limbs that were found."""
    large = np.zeros((96, 128, 3), np.uint8)
    large[60:92, 90:122] = read_picture(picture(root))
    estimator = Estimator(checkpoint(root), overrides=["evaluation.camera.iterations=0"])
    whole = whole_crop((96, 128))
    settings, device = estimator.recipe.settings, torch.device("cpu")
    with torch.no_grad():
        near, closer = _look_twice(estimator.model, large, settings, device)
    assert closer.centre == whole.centre
    assert 16 <= near.side < whole.side
    assert closer.side <= whole.side
    found = estimator.person(large)
    assert np.isfinite(found.vertices).all()


def test_a_recipe_without_people_is_refused(root: Path) -> None:
    depth = root / "runs" / "depthnet" / "checkpoints" / "best"
    with pytest.raises(ConfigError, match="is not a PersonEstimator: it has no estimate"):
        estimate(picture(root), depth)
