"""People of a data set: bad rows are refused or left out; each kind of label has the pelvis."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import real_files
import torch
from small_recipes import SMALL_BLADE

from overt.data.people.human_data import HumanData, write_human_data
from overt.data.people.scenes import PeopleOptions
from overt.data.people.synthetic import write_people
from overt.errors import DataError
from overt.geometry.body_capsule import write_capsule_body
from overt.recipes.blade.config import BodySettings, DataSettings, SourceSettings
from overt.recipes.blade.data import PoseSource
from overt.recipes.blade.people import People, SmplHips

BODY = BodySettings("capsule", None, "capsule", None, None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    write_people(folder, "people_train", 4, PeopleOptions(size=32, seed=2, body="capsule"))
    return folder


@pytest.fixture(scope="module")
def settings(root: Path) -> DataSettings:
    found = SMALL_BLADE["depthnet"].config(root).settings.data
    assert isinstance(found, DataSettings)
    return found


def columns(root: Path) -> dict[str, np.ndarray]:
    data = HumanData.load(root / "preprocessed_datasets" / "people_train.npz")
    return {name: np.array(column) for name, column in data.columns.items()}


def people(
    root: Path, settings: DataSettings, known: dict[str, np.ndarray] | None = None
) -> People:
    name = "people_train.npz"
    if known is not None:
        name = "changed.npz"
        write_human_data(root / "preprocessed_datasets" / name, known)
    source = SourceSettings("x", f"preprocessed_datasets/{name}", "datasets/people_train", 1.0)
    return People(source, settings, BODY, root, needs_pose=False)


def test_every_kind_of_label_gives_the_same_pelvis(root: Path, settings: DataSettings) -> None:
    known = columns(root)
    smplx = people(root, settings)
    pelvis = np.stack([smplx.pelvis(row) for row in range(4)])
    stored = known["keypoints2d"][:, 17, :2]  # the projected pelvis
    focal = known["K"][:, 0, 0, None]
    np.testing.assert_allclose(focal * pelvis[:, :2] / pelvis[:, 2:] + 16, stored, atol=0.01)
    assert smplx.principal_point(0, (32, 32)) == (16, 16)
    shifted = known | {"K": known["K"] + np.float32([[0, 0, 2], [0, 0, -3], [0, 0, 0]])}
    assert people(root, settings, shifted).principal_point(1, (32, 32)) == (18, 13)
    without_camera = {name: value for name, value in known.items() if name != "K"}
    assert people(root, settings, without_camera).principal_point(1, (32, 40)) == (20, 16)
    given = {name: value for name, value in known.items() if "smpl" not in name}
    direct = people(root, settings, given | {"pelvis": pelvis})
    np.testing.assert_allclose(direct.pelvis(2), pelvis[2])
    smpl = {name: value for name, value in known.items() if "smplx" not in name}
    hips = people(root, settings, smpl)
    # The middle of the hips hangs a little below the pelvis.
    assert np.linalg.norm(hips.pelvis(1) - pelvis[1]) < 0.12
    exact = hips.pelvis(1)
    with torch.autocast("cpu", torch.bfloat16):  # that of a run on a CPU
        np.testing.assert_array_equal(hips.pelvis(1), exact)


def test_boxes_without_size_are_refused_or_left_out(root: Path, settings: DataSettings) -> None:
    known = columns(root)
    known["bbox_xywh"][2, 3] = 0.0
    with pytest.raises(DataError, match=r"1 of 4 rows.*row 2 \(imgs/000002\.jpg\) has a box"):
        people(root, settings, known)
    lenient = DataSettings(**{**vars(settings), "drop_bad_rows": True})
    assert len(people(root, lenient, known)) == 3


def test_people_without_box_and_key_points_are_refused_or_left_out(
    root: Path, settings: DataSettings
) -> None:
    """When a file is opened, not when a run comes to the row."""
    known = columns(root)
    del known["bbox_xywh"]
    known["keypoints2d"][2, :, 2] = 0.0
    with pytest.raises(DataError, match=r"1 of 4 rows.*row 2 .* neither a box nor two visible"):
        people(root, settings, known)
    lenient = DataSettings(**{**vars(settings), "drop_bad_rows": True})
    assert len(people(root, lenient, known)) == 3
    alone = {"image_path": known["image_path"], "pelvis": np.full((4, 3), 2.0)}
    with pytest.raises(DataError, match="the annotations lack keypoints2d"):
        people(root, settings, alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (1 / 32, r"4 of 4 rows.*a box without size \([0-9.]+ x [0-9.]+ pixels\)"),  # fractions
        (40, r"row 0, a square of \d+ pixels .*outside of .*000000\.jpg, which has 32 x 32"),
    ],
)
def test_boxes_of_other_pictures_are_refused(
    root: Path, settings: DataSettings, change: float, message: str
) -> None:
    known = columns(root)
    known["bbox_xywh"][:, :4] = [[4, 4, 28, 24]] * 4
    known["bbox_xywh"][:, :4] *= change
    with pytest.raises(DataError, match=message):
        people(root, settings, known)


def test_people_behind_the_camera_are_refused(root: Path, settings: DataSettings) -> None:
    known = columns(root)
    known["smplx/transl"][1, 2] = -2.0
    with pytest.raises(DataError, match=r"row 1 .*is behind the camera.*data\.drop_bad_rows"):
        people(root, settings, known)


@pytest.mark.parametrize(
    ("column", "index", "value", "message"),
    [
        ("K", (0, 2), np.nan, "has a non-finite K"),
        ("K", (0, 0), 0.0, r"has a focal length of 0 pixels \(K\)"),
        ("focal_length", (0,), np.nan, "has a non-finite focal_length"),
        ("focal_length", (0,), -3.0, r"has a focal length of -3 pixels \(focal_length\)"),
        ("smplx/transl", (0,), np.nan, "has a non-finite smplx/transl"),
        ("smplx/transl", (2,), np.nan, "has a non-finite smplx/transl"),
        ("smplx/body_pose", (4, 1), np.inf, "has a non-finite smplx/body_pose"),
        ("smplx/betas", (0,), np.nan, "has a non-finite smplx/betas"),
        ("smplx/transl", (2,), 2400.0, r"has a smplx/transl of 2400; expected meters"),
        ("smplx/body_pose", (4, 1), 90.0, "has a smplx/body_pose of 90; .* radians"),
    ],
)
def test_labels_and_cameras_that_are_not_finite_are_refused_or_left_out(
    root: Path,
    settings: DataSettings,
    column: str,
    index: tuple[int, ...],
    value: float,
    message: str,
) -> None:
    known = columns(root)
    if column == "focal_length":
        del known["K"]  # which has precedence
    known[column][(1, *index)] = value
    with pytest.raises(DataError, match=rf"1 of 4 rows.*row 1 .*{message}.*data\.drop_bad_rows"):
        people(root, settings, known)
    lenient = DataSettings(**{**vars(settings), "drop_bad_rows": True})
    assert len(people(root, lenient, known)) == 3


@pytest.mark.parametrize("group", ["smpl", "smplx"])
@pytest.mark.parametrize("part", ["betas", "global_orient", "body_pose"])
def test_labels_that_lack_a_part_are_refused_when_opened(
    root: Path, settings: DataSettings, group: str, part: str
) -> None:
    other = {"smpl": "smplx/", "smplx": "smpl/"}[group]
    known = {name: value for name, value in columns(root).items() if not name.startswith(other)}
    del known[f"{group}/{part}"]
    with pytest.raises(DataError, match=f"the annotations lack {group}/{part}[,;]"):
        people(root, settings, known)


def test_absent_pictures_are_named(root: Path, settings: DataSettings) -> None:
    known = columns(root)
    known["image_path"][0] = "imgs/gone.jpg"
    with pytest.raises(DataError, match=r"lists .*gone\.jpg, which does not exist; check data"):
        people(root, settings, known)
    known = columns(root)
    known["image_path"][3] = "imgs/gone.jpg"
    with pytest.raises(DataError, match=r"gone\.jpg: listed in .*\(row 3\) but missing"):
        people(root, settings, known).picture(3)
    known = columns(root)
    for row in (1, 0):
        known["image_path"][row] = ""
        with pytest.raises(DataError, match=rf"row {row} \(\) names no picture"):
            people(root, settings, known)


def test_missing_pictures_of_training_are_refused_or_left_out(
    root: Path, settings: DataSettings, tmp_path: Path
) -> None:
    """Before the first step, wherever they are in the file; scores open theirs by themselves."""
    shutil.copytree(root / "datasets", tmp_path / "datasets")
    (tmp_path / "datasets" / "people_train" / "imgs" / "000002.jpg").unlink()
    opened = people(root, settings, columns(root))
    opened.images = tmp_path / "datasets" / "people_train"
    with pytest.raises(DataError, match=r"1 of 4 pictures are missing.*000002\.jpg \(row 2\)"):
        opened.check_pictures()
    opened.settings = DataSettings(**{**vars(settings), "drop_bad_rows": True})
    opened.check_pictures()
    assert [opened.picture_path(row).stem[-1] for row in range(len(opened))] == ["0", "1", "3"]


def test_paths_may_have_the_separators_of_windows(root: Path, settings: DataSettings) -> None:
    known = columns(root)
    expected = people(root, settings).picture(2)
    known["image_path"] = np.char.replace(known["image_path"], "/", "\\")
    np.testing.assert_array_equal(people(root, settings, known).picture(2), expected)


def test_missing_labels_are_named(root: Path, settings: DataSettings) -> None:
    known = {name: value for name, value in columns(root).items() if "smpl" not in name}
    with pytest.raises(DataError, match=r"lack smplx/body_pose, smplx/transl; found K, bbox"):
        people(root, settings, known)
    source = SourceSettings("x", "preprocessed_datasets/changed.npz", "datasets/people_train", 1.0)
    with pytest.raises(DataError, match="lack smplx/global_orient"):
        People(source, settings, BODY, root, needs_pose=True)


def test_labels_of_smpl_need_its_body(root: Path, settings: DataSettings) -> None:
    smpl = {name: value for name, value in columns(root).items() if "smplx" not in name}
    write_human_data(root / "preprocessed_datasets" / "smpl.npz", smpl)
    source = SourceSettings("x", "preprocessed_datasets/smpl.npz", "datasets/people_train", 1.0)
    message = r"set model\.body\.smpl to SMPL_NEUTRAL.* to J_regressor_extra\.npy$"
    with pytest.raises(DataError, match=message):
        People(source, settings, BodySettings("capsule", None, None, None, None), root, False)


def real(root: Path, settings: DataSettings, **changed: object) -> People:
    """People in a file as MMHuman3D writes it, labeled with SMPL."""
    known = real_files.of_smpl(columns(root))
    more = {name: value for name, value in changed.items() if isinstance(value, np.ndarray)}
    real_files.write_annotations(root / "preprocessed_datasets" / "real.npz", known, **more)
    name = str(changed.get("name", "x"))
    source = SourceSettings(name, "preprocessed_datasets/real.npz", "datasets/people_train", 1.0)
    body = BodySettings("none.npz", None, *(str(root / "bodies" / name) for name in BODIES))
    return People(source, settings, body, root, needs_pose=False)


BODIES = ("SMPL_NEUTRAL.pkl", "J_regressor_extra.npy", "smplx2smpl_deftrafo_setup.pkl")


def test_real_files_of_190_points_are_read_by_name(root: Path, settings: DataSettings) -> None:
    """Compressed key points, 22 of 190: each limb is that of the rendered person."""
    real_files.write_bodies(root / "bodies")
    found, rendered = real(root, settings), people(root, settings)
    assert found.data.columns["keypoints2d"].shape == (4, 22, 3)
    for row in range(4):
        np.testing.assert_array_equal(found.limb_keypoints(row), rendered.limb_keypoints(row))
        # The middle of the hips, beside the pelvis.
        assert 0.01 < np.linalg.norm(found.pelvis(row) - rendered.pelvis(row)) < 0.12
    wrong = DataSettings(**{**vars(settings), "keypoint_convention": "coco"})
    with pytest.raises(DataError, match=r"190 points, but data\.keypoint_convention=coco"):
        real(root, wrong).limb_keypoints(0)


def test_only_posenet_needs_the_names_of_key_points(root: Path, settings: DataSettings) -> None:
    """DepthNet and evaluations read boxes: points of any convention, or without knees, are fine."""
    if not (root / "bodies").exists():
        real_files.write_bodies(root / "bodies")
    wide, mask = real_files.human_data_keypoints(columns(root)["keypoints2d"])
    mask[[4, 5]] = 0  # the knees
    source = SourceSettings("x", "preprocessed_datasets/real.npz", "datasets/people_train", 1.0)
    body = BodySettings(str(root / "bodies" / "SMPLX_NEUTRAL.npz"), None, None, None, None)
    for points, known, message in (
        (wide[:, mask > 0], mask, "keypoints2d has no left_knee, right_knee"),
        (wide[:, :49], np.ones(49), "keypoints2d has 49 points, which fits none"),
    ):
        stored = {"keypoints2d": points, "keypoints2d_mask": known}
        assert len(real(root, settings, **stored)) == 4
        annotations = root / source.annotations
        real_files.write_annotations(annotations, columns(root), **stored)
        with pytest.raises(DataError, match=message):
            People(source, settings, body, root, needs_pose=True)


def test_the_hips_come_from_the_extra_joints_alone(root: Path) -> None:
    """Of the 17 joints of Human3.6M, the first two are others."""
    files = root / "bodies"
    if not files.exists():
        real_files.write_bodies(files)
    smpl = str(files / "SMPL_NEUTRAL.pkl")
    np.save(files / "one_row.npy", np.zeros((1, real_files.SMPL_VERTICES)))
    for name in ("J_regressor_h36m.npy", "one_row.npy"):
        body = BodySettings("none.npz", None, smpl, str(files / name), None)
        with pytest.raises(DataError, match=r"expected \(9, 6890\): name J_regressor_extra\.npy"):
            SmplHips(body)


def test_longer_shapes_count_for_the_pelvis_and_need_a_body_with_as_many(
    root: Path, settings: DataSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of BEDLAM (11) or of fits with 100: cut to ten, people would be elsewhere."""
    known = {name: value for name, value in columns(root).items() if not name.startswith("smpl/")}
    short = people(root, settings, known).pelvis(1)
    known["smplx/betas"] = np.pad(known["smplx/betas"], ((0, 0), (0, 6)), constant_values=2.0)
    with pytest.raises(DataError, match=r"betas has 16 .* model\.body\.model=capsule has 10; name"):
        people(root, settings, known)
    path = tmp_path / "long.npz"
    write_capsule_body(path)
    with np.load(path) as arrays:
        content = dict(arrays)
    content["shapedirs"] = np.pad(content["shapedirs"][..., :10], ((0, 0), (0, 0), (0, 390)))
    content["shapedirs"][:, 2, 15] = 0.1  # meters farther away per unit
    content["overt_body"] = np.array("capsule")
    np.savez(path, **content)
    body = BodySettings(str(path), None, "capsule", None, None)
    source = SourceSettings("x", "preprocessed_datasets/changed.npz", "datasets/people_train", 1.0)
    opened = People(source, settings, body, root, needs_pose=True)
    np.testing.assert_allclose(opened.pelvis(1) - short, [0, 0, 0.2], atol=1e-5)
    assert "16 shape coefficients; PoseNet predicts and learns the first 10" in caplog.text
    pose_settings = SMALL_BLADE["posenet"].config(root).settings.data
    sample = PoseSource(opened, pose_settings).sample(1, np.random.default_rng(0))
    np.testing.assert_array_equal(sample.shape, known["smplx/betas"][1, :10])


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.parametrize("other", ["smpl/", "smplx/"])
def test_cached_labels_are_copied(root: Path, settings: DataSettings, other: str) -> None:
    """The cache is mapped read-only, of which torch warns."""
    known = {name: value for name, value in columns(root).items() if not name.startswith(other)}
    cached = DataSettings(**{**vars(settings), "cache_annotations": True})
    opened = people(root, cached, known)
    assert not opened.data.columns["bbox_xywh"].flags.writeable
    parts = [opened.pelvis(0), *opened.label(0)]
    assert all(torch.from_numpy(part).isfinite().all() for part in parts)


def test_rows_without_a_label_are_left_out_and_counted_once(
    root: Path, settings: DataSettings, caplog: pytest.LogCaptureFixture
) -> None:
    labeled = np.array([1, 0, 1, 1])
    for _ in range(2):
        found = real(root, settings, has_smpl=labeled)
    assert [found.picture_path(row).stem for row in range(3)] == ["000000", "000002", "000003"]
    assert caplog.text.count("1 of 4 rows have no label (has_smpl) and are skipped") == 1
    with pytest.raises(DataError, match="has_smpl is 0 in all 4 rows"):
        real(root, settings, has_smpl=np.zeros(4))


def test_a_folder_is_dropped_from_the_paths_of_one_data_set(
    root: Path, settings: DataSettings
) -> None:
    names = np.array([f"images/imgs/{row:06d}.jpg" for row in range(4)])
    with pytest.raises(DataError, match=r"images/imgs/000000\.jpg, which does not exist"):
        real(root, settings, image_path=names)
    found = real(root, settings, image_path=names, name="h36m")
    assert found.picture(3).shape == (32, 32, 3)


@pytest.mark.parametrize("name", ["capsule", "anny"])
def test_bodies_of_rendered_people_are_none_of_real_people(
    root: Path, settings: DataSettings, name: str
) -> None:
    real_files.write_annotations(root / "preprocessed_datasets" / "real.npz", columns(root))
    source = SourceSettings("x", "preprocessed_datasets/real.npz", "datasets/people_train", 1.0)
    body = BodySettings(name, None, None, None, None)
    with pytest.raises(DataError, match=rf"model\.body\.model={name} is the body of rendered"):
        People(source, settings, body, root, needs_pose=True)


def test_rendered_people_need_the_body_they_were_rendered_with(
    root: Path, settings: DataSettings
) -> None:
    source = SourceSettings("x", "preprocessed_datasets/people_train.npz", "datasets/x", 1.0)
    smplx = BodySettings("SMPLX_NEUTRAL.npz", None, None, None, None)
    with pytest.raises(DataError, match=r"were rendered with the body capsule, but model\.body"):
        People(source, settings, smplx, root, needs_pose=True)


def test_labels_of_smpl_are_to_be_converted(root: Path, settings: DataSettings) -> None:
    real(root, settings)
    source = SourceSettings("x", "preprocessed_datasets/real.npz", "datasets/people_train", 1.0)
    smplx = BodySettings("SMPLX_NEUTRAL.npz", None, None, None, None)
    with pytest.raises(DataError, match=r"labels are SMPL's.*`overt data smplx-labels .*real\.npz"):
        People(source, settings, smplx, root, needs_pose=True)
