"""`overt estimate`: from a picture to mesh, camera and overlay, by command and by call."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_BLADE, stage_one

from overt.commands.ckpt import export
from overt.commands.estimate import (
    Estimator,
    estimate,
    main,
    overlay_of,
    read_picture,
    refuse_nonfinite,
)
from overt.data.people.crops import BOX_GROWTH
from overt.data.people.human_data import HumanData
from overt.data.people.scenes import FRAME
from overt.errors import CheckpointError, ConfigError, DataError
from overt.geometry.silhouette import rasterize
from overt.recipes.blade.data import whole_crop
from overt.recipes.blade.estimate import (
    ROOM,
    Shrunk,
    _cut,
    _look_twice,
)
from overt.recipes.blade.posenet import PoseOutput
from overt.tasks import PersonEstimate


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
    for focal in (-5.0, 0.0, np.nan, np.inf):
        with pytest.raises(DataError, match=r"focal=.*; give a positive number of pixels"):
            Estimator(checkpoint(root)).person(picture(root), focal=focal)
    with pytest.raises(DataError, match="cannot be read"):
        estimate(tmp_path / "none.jpg", checkpoint(root))
    with pytest.raises(DataError, match=r"\(H, W, 3\) uint8"):
        read_picture(np.zeros((4, 4)))
    with pytest.raises(DataError, match="expected one person, got 2; use"):
        estimate(picture(root), checkpoint(root), mask=np.ones((2, 32, 32)))
    with pytest.raises(ConfigError, match="--mask belongs to one picture, but 2 are given; use"):
        main(["a.jpg", "b.jpg", "--checkpoint", "c", "--mask", "m.png"])
    with pytest.raises(ConfigError, match=r"a/x\.jpg and b/x\.png would both be .* x_person"):
        main(["a/x.jpg", "b/x.png", "--checkpoint", "c"])
    with pytest.raises(ConfigError, match="needs a picture"):
        main(["training.device=cpu", "--checkpoint", "c"])
    words = [str(picture(root)), "--opt-pose", "--opt-tz", "--checkpoint", str(checkpoint(root))]
    with pytest.raises(ConfigError, match="--opt-pose and --opt-tz can only be used with a mask"):
        main([*words, "evaluation.camera.iterations=1"])
    with pytest.raises(ConfigError, match=r"iterations=0 would optimize nothing; set"):
        main(words)


def test_files_are_read_before_a_model_is_loaded(root: Path, tmp_path: Path) -> None:
    """All of them: the last picture of many too. There is no checkpoint here."""
    pictures, gone = str(picture(root)), tmp_path / "gone"
    with pytest.raises(DataError, match=r"gone\.jpg, .*: no such file; give a JPEG, PNG or WebP"):
        main([pictures, f"{gone}.jpg", str(tmp_path), "--checkpoint", "c"])
    with pytest.raises(DataError, match=r"gone\.png: cannot be read"):
        main([pictures, "--mask", f"{gone}.png", "--checkpoint", "c"])
    with pytest.raises(DataError, match=r"gone\.json: cannot be read"):
        main([pictures, "--keypoints", f"{gone}.json", "--checkpoint", "c"])
    # So is where results cannot be written.
    for output in (pictures, f"{pictures}/person"):
        with pytest.raises(ConfigError, match=r"--output=.*000000\.jpg.* is a file; name a new"):
            main([pictures, "--output", output, "--checkpoint", "c"])


@pytest.mark.parametrize("image_size", [(400, 267), (61, 400), (400, 5), (100, 80)])
def test_a_shrunken_picture_keeps_positions(image_size: tuple[int, int]) -> None:
    """Mask and keypoints agree in it to a part of a pixel, whatever sides are rounded."""
    shrunk = Shrunk.of(image_size, 100)
    assert max(shrunk.size) <= 100
    assert min(shrunk.size) >= 1
    mask = np.zeros(image_size, bool)
    height, width = image_size
    mask[height // 5 : height // 2, width // 5 : width // 2] = True
    small = shrunk.mask(mask)[0].numpy()
    assert small.shape == shrunk.size
    middle = np.array([axis.mean() for axis in np.nonzero(mask)])
    grid = np.indices(small.shape)
    found = (grid * small).sum((1, 2)) / small.sum()
    assert np.abs(found - shrunk.pixel(middle)).max() < 0.2


def person_at(depth: float, overlay: np.ndarray) -> PersonEstimate:
    return PersonEstimate(
        vertices=np.zeros((4, 3), np.float32),
        faces=np.zeros((2, 3), np.int64),
        joints=np.zeros((55, 3), np.float32),
        focal=500.0,
        centre=(1.0, 1.0),
        image_size=(2, 2),
        pelvis=np.array([0, 0, depth], np.float32),
        translation=np.zeros(3, np.float32),
        global_orient=np.zeros(3, np.float32),
        body_pose=np.zeros((21, 3), np.float32),
        betas=np.zeros(10, np.float32),
        keypoints=np.zeros((12, 2), np.float32),
        overlay=overlay,
    )


def test_the_nearest_person_is_drawn_in_front() -> None:
    nobody = np.zeros((2, 2, 3), np.uint8)
    near, far = (person_at(depth, nobody + color) for depth, color in ((1, 50), (3, 90)))
    for people in ([near, far], [far, near]):
        assert (overlay_of(nobody, people) == 50).all()


def test_estimates_that_are_not_finite_are_refused() -> None:
    refuse_nonfinite(person_at(2.0, np.zeros((2, 2, 3), np.uint8)))
    with pytest.raises(DataError, match="non-finite pelvis, so nothing is written"):
        refuse_nonfinite(person_at(np.nan, np.zeros((2, 2, 3), np.uint8)))


def test_several_people_and_pictures(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes name people, each with a folder; pictures follow each other with one model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boxes.json").write_text("[[2, 2, 14, 28], [16, 4, 14, 26]]")
    words = ["--checkpoint", str(checkpoint(root)), "evaluation.camera.iterations=0"]
    assert main([str(picture(root)), *words, "--boxes", "boxes.json", "--format", "glb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("focal length" in line for line in lines) == 2
    for line in lines:
        if line.startswith("written to"):
            written, names = line.removeprefix("written to ").split(": ")
            names = names.removesuffix(" of all 2 people").split(", ")
            assert all((tmp_path / written / name).is_file() for name in names), line
    folder = tmp_path / "000000_person"
    for number, box in enumerate([[2, 2, 14, 28], [16, 4, 14, 26]]):  # in their order
        own = folder / f"person_{number}"
        assert (own / "mesh.glb").read_bytes()[:4] == b"glTF"
        assert "<canvas" in (own / "view.html").read_text()
        camera = json.loads((own / "camera.json").read_text())
        assert (camera["box"], camera["box_index"]) == (box, number)
    assert Image.open(folder / "overlay.png").size == (32, 32)
    other = picture(root).with_name("000001.jpg")
    assert main([str(picture(root)), str(other), *words, "--output", "all"]) == 0
    assert (tmp_path / "all" / "000001_person" / "mesh.obj").is_file()


def test_a_broken_picture_among_several_is_named_and_the_others_are_written(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = (picture(root).with_name(f"00000{number}.jpg") for number in (0, 1))
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(first.read_bytes()[:200])
    words = ["--checkpoint", str(checkpoint(root)), "--output", str(tmp_path / "out")]
    words.append("evaluation.camera.iterations=1")
    with pytest.raises(
        DataError, match=r"broken\.jpg: not estimated, see above; the other 2 pictures"
    ):
        main([str(first), str(broken), str(last), *words])
    assert f"{broken}: skipped: " in capsys.readouterr().out
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["000000_person", "000001_person"]
    with pytest.raises(DataError) as alone:
        main([str(broken), *words])
    assert "see above" not in str(alone.value)


def test_several_people_have_masks_and_keypoints(root: Path, tmp_path: Path) -> None:
    """A mask moves the mesh over its person, also where people share a focal length."""
    (tmp_path / "boxes.json").write_text("[[2, 2, 14, 28], [16, 4, 14, 26]]")
    points = np.ones((2, 12, 3))
    points[:, :, :2] = [[[8 + 14 * person, 6 + 2 * row] for row in range(12)] for person in (0, 1)]
    points[:, ::2, 0] -= 3
    (tmp_path / "limbs.json").write_text(json.dumps(points.tolist()))
    words = [str(picture(root)), "--checkpoint", str(checkpoint(root)), "--output", str(tmp_path)]
    for person, columns in enumerate((slice(4, 12), slice(18, 26))):
        mask = np.zeros((32, 32), np.uint8)
        mask[4:30, columns] = 255
        Image.fromarray(mask).save(tmp_path / f"{person}.png")
        words += ["--mask", str(tmp_path / f"{person}.png")]
    detections = [
        *("--boxes", str(tmp_path / "boxes.json")), *("--keypoints", str(tmp_path / "limbs.json")),
    ]  # fmt: skip
    cameras = []
    for more in ([], ["--opt-pose", "--opt-tz"]):
        assert main([*words, *detections, *more, "evaluation.camera.iterations=2"]) == 0
        cameras.append(
            [json.loads((tmp_path / f"person_{one}" / "camera.json").read_text()) for one in (0, 1)]
        )
    for plain, freed, given in zip(*cameras, points, strict=True):
        np.testing.assert_array_equal(plain["keypoints2d"], given[:, :2])
        assert plain["smplx"]["body_pose"] != freed["smplx"]["body_pose"]
    assert cameras[0][0]["focal_length"] == cameras[0][1]["focal_length"]
    assert cameras[0][0]["pelvis"][0] < 0 < cameras[0][1]["pelvis"][0]
    # Without boxes and keypoints, two masks are two people.
    assert main([*words, "evaluation.camera.iterations=1"]) == 0
    camera = json.loads((tmp_path / "person_1" / "camera.json").read_text())
    assert (camera["box"], camera["box_index"]) == ([18, 4, 8, 26], 1)


def test_detections_of_several_pictures(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file for all; pictures without a person are skipped, and people that do not fit."""
    polygon = [4, 4, 12, 4, 12, 28, 4, 28]
    results = [
        {"image_id": 0, "category_id": 1, "bbox": [2, 2, 14, 28], "score": 0.9},
        {"image_id": 1, "category_id": 1, "bbox": [2, 2, 14, 28], "score": 0.9},
        {"image_id": 1, "category_id": 1, "bbox": [200, 4, 14, 26], "score": 0.8},
        {"image_id": 1, "category_id": 1, "segmentation": [polygon], "score": 0.7},
        {"image_id": 9, "category_id": 1, "bbox": [2, 2, 14, 28], "score": 0.9},
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results))
    pictures = [str(picture(root).with_name(f"00000{number}.jpg")) for number in (0, 1, 2)]
    words = ["--checkpoint", str(checkpoint(root)), "--detections", str(file)]
    words += ["--output", str(tmp_path), "evaluation.camera.iterations=1", "--opt-tz"]
    assert main([*pictures, *words]) == 0
    lines = capsys.readouterr().out
    assert "000002.jpg: skipped, no person in --detections" in lines
    assert "000001.jpg: person in row 2 of --detections skipped: the box [200, " in lines
    assert sorted(path.name for path in tmp_path.glob("*_person")) == [
        "000000_person", "000001_person",
    ]  # fmt: skip
    assert (tmp_path / "000000_person" / "mesh.obj").is_file()
    cameras = [
        json.loads((tmp_path / "000001_person" / f"person_{number}" / "camera.json").read_text())
        for number in (0, 1)
    ]
    assert [camera["box_index"] for camera in cameras] == [1, 3]
    assert cameras[1]["box"] == [4, 4, 8, 24]

    file.write_text(json.dumps([results[2]]))
    with pytest.raises(ConfigError, match="--opt-tz can only be used with a mask"):
        main([pictures[1], *words])
    with pytest.raises(DataError, match="nobody could be estimated"):
        main([pictures[1], *words[:-1]])
    with pytest.raises(ConfigError, match="--boxes and --detections exclude each other"):
        main([pictures[1], *words, "--boxes", "boxes.json"])


def test_people_of_one_picture_share_its_camera(root: Path) -> None:
    """They had a focal length each."""
    estimator = Estimator(checkpoint(root))
    boxes = np.array([[2, 2, 14, 28], [16, 4, 14, 26], [8, 8, 12, 20]])
    alone = [estimator.people(picture(root), boxes=box)[0] for box in boxes]
    people = estimator.people(picture(root), boxes=boxes)
    focal = np.median([person.focal for person in alone])
    assert [person.focal for person in people] == pytest.approx([focal] * 3)
    for before, person in zip(alone, people, strict=True):
        # As large as before in the picture, thus at another distance.
        assert person.pelvis[2] / before.pelvis[2] == pytest.approx(focal / before.focal, rel=0.2)
        spreads = [
            (each.focal * each.joints[:, :2] / each.joints[:, 2:]).std(axis=0)
            for each in (before, person)
        ]
        np.testing.assert_allclose(spreads[0], spreads[1], rtol=0.15)


@pytest.mark.parametrize("framing", ["camera", "portrait"])
def test_the_second_look_is_closer(root: Path, framing: str) -> None:
    """The crops follow limbs that the whole picture shows right of its middle."""
    fractions = torch.tensor([[0.5, 0.4], [0.7, 0.6]]).repeat(6, 1)[None]  # (1, 12, 2)
    nothing = torch.zeros(1)

    def model(depth_crops: torch.Tensor, pose_crops: torch.Tensor) -> PoseOutput:
        return PoseOutput(nothing, nothing, nothing, fractions)

    large = np.zeros((96, 128, 3), np.uint8)
    overrides = ["evaluation.camera.iterations=0", f"data.synthetic.framing={framing}"]
    estimator = Estimator(checkpoint(root), overrides=overrides)
    settings, device = estimator.recipe.settings, torch.device("cpu")
    near, closer = _look_twice(model, large, settings, device)  # type: ignore[arg-type]
    assert closer.centre == whole_crop((96, 128)).centre
    assert closer.side == pytest.approx(ROOM * 2 * 25.6)
    # The whole picture is a square of 128 pixels, so the limbs are at x 64 to 89.6, y 35.2 to 60.8.
    about_limbs = [76.8, 48, BOX_GROWTH * 25.6]
    expected = about_limbs if framing == "camera" else [*closer.centre, closer.side]
    np.testing.assert_allclose([*near.centre, near.side], expected, rtol=1e-5)
    assert np.isfinite(estimator.person(large).vertices).all()


@pytest.mark.parametrize("given", ["nothing", "mask", "keypoints", "box"])
def test_depthnet_sees_portraits_as_in_training(
    root: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was trained on the whole picture of a person in its middle: no crop that is closer."""
    pixels = read_picture(picture(root))
    side = pixels.shape[0]
    low, high = side * (1 - 1 / FRAME) / 2, side * (1 + 1 / FRAME) / 2
    mask = np.zeros((side, side), bool)
    mask[round(low) : round(high), side // 2 - 4 : side // 2 + 4] = True
    keypoints = np.full((12, 3), side / 2, np.float32)
    keypoints[:, 1] = np.linspace(0.15, 0.85, 12) * side  # without head and feet
    detections: dict[str, dict[str, Any]] = {
        "nothing": {},
        "mask": {"mask": mask},
        "keypoints": {"keypoints": keypoints},
        "box": {"box": np.array([side / 2 - 4, low, 8, high - low], np.float32)},
    }
    overrides = ["evaluation.camera.iterations=0", "data.synthetic.framing=portrait"]
    estimator = Estimator(checkpoint(root), overrides=overrides)
    forward, seen = estimator.model.forward, []

    def remembered(depth_crops: torch.Tensor, pose_crops: torch.Tensor) -> PoseOutput:
        seen.append(depth_crops)
        output: PoseOutput = forward(depth_crops, pose_crops)
        # Limbs that the whole picture shows from end to end.
        return output._replace(keypoints=torch.from_numpy(keypoints[None, :, :2] / side))

    monkeypatch.setattr(estimator.model, "forward", remembered)
    estimator.person(pixels, **detections[given])
    size = estimator.recipe.settings.data.depth_size
    whole = _cut(pixels, whole_crop((side, side)), size).float()
    assert (seen[-1].float() - whole).abs().mean() < (2 if given == "box" else 1e-6)


def test_the_overlay_is_seen_through_the_camera(root: Path) -> None:
    """Also where the solve has a smaller picture, whose shorter side is rounded."""
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[32:64, 48:80] = read_picture(picture(root))
    small = ["evaluation.camera.iterations=0", "evaluation.camera.size=10"]
    found = estimate(pixels, checkpoint(root), overrides=small)
    image = found.vertices @ np.array(found.camera()["K"], np.float32).T
    drawn = rasterize(
        torch.tensor(image[None, :, :2] / image[None, :, 2:]), torch.tensor(image[None, :, 2]),
        torch.tensor(found.faces), found.image_size,
    ).mask[0].numpy()  # fmt: skip
    covered = (found.overlay != pixels).any(-1)
    assert covered.any()
    assert (drawn ^ covered).sum() <= 2


def test_a_checkpoint_that_holds_stage_one_is_enough(root: Path) -> None:
    """Elsewhere the checkpoint of stage 1 is not at hand; the message says what to do."""
    elsewhere = "model.depthnet_checkpoint=elsewhere/depth/best"
    with pytest.raises(CheckpointError, match=r"elsewhere.*model\.depthnet_checkpoint=null is"):
        estimate(picture(root), checkpoint(root), overrides=[elsewhere])
    alone = estimate(picture(root), checkpoint(root), overrides=["model.depthnet_checkpoint=null"])
    np.testing.assert_array_equal(
        alone.vertices, estimate(picture(root), checkpoint(root)).vertices
    )


def test_an_exported_file_that_holds_stage_one_is_used_without_a_warning(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "posenet.safetensors"
    export(checkpoint(root), "safetensors", file)
    exported = estimate(picture(root), file)
    assert not caplog.text
    np.testing.assert_array_equal(
        exported.vertices, estimate(picture(root), checkpoint(root)).vertices
    )


def test_a_recipe_without_people_is_refused(root: Path) -> None:
    depth = root / "runs" / "depthnet" / "checkpoints" / "best"
    with pytest.raises(ConfigError, match="cannot do this: it has no estimate"):
        estimate(picture(root), depth)
