"""HumanData: columns come back in every form they are written in; what is wrong is named."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from overt.data.people.human_data import (
    CACHE_SUFFIX,
    CACHE_VERSION,
    Header,
    HumanData,
    bad_boxes,
    read_columns,
    rows_without_extent,
    write_human_data,
)
from overt.errors import DataError


def columns(count: int = 5) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "image_path": np.array([f"imgs/{row}.jpg" for row in range(count)]),
        "bbox_xywh": random.uniform(1, 9, (count, 5)).astype(np.float32),
        "keypoints2d": random.uniform(0, 9, (count, 17, 3)).astype(np.float32),
        "K": np.tile(np.array([[50, 0, 3], [0, 50, 4], [0, 0, 1]], np.float32), (count, 1, 1)),
        "smplx/global_orient": random.standard_normal((count, 3)).astype(np.float32),
        "smplx/body_pose": random.standard_normal((count, 21, 3)).astype(np.float32),
        "smplx/betas": random.standard_normal((count, 10)).astype(np.float32),
        "smplx/transl": random.standard_normal((count, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("cache", [False, True])
def test_what_is_written_is_read(tmp_path: Path, cache: bool) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns())
    for _ in range(2):  # with a cache: made, then used
        data = HumanData.load(path, cache=cache)
        assert len(data) == 5
        assert data.has("smplx")
        assert not data.has("smpl")
        for name, column in columns().items():
            np.testing.assert_array_equal(data.columns[name], column)
    assert (tmp_path / f"people.npz{CACHE_SUFFIX}").exists() == cache


def test_a_cache_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns(5))
    HumanData.load(path, cache=True)
    write_human_data(path, columns(7))
    assert len(HumanData.load(path, cache=True)) == 7


@pytest.mark.parametrize("version", [None, CACHE_VERSION - 1])
def test_a_cache_of_an_earlier_version_is_made_again(tmp_path: Path, version: int | None) -> None:
    """It could hold keypoints that are NaN, which count as unlabeled since."""
    path = tmp_path / "people.npz"
    write_human_data(path, columns(5))
    HumanData.load(path, cache=True)
    folder = tmp_path / f"people.npz{CACHE_SUFFIX}"
    points = np.load(folder / "keypoints2d.npy")
    np.save(folder / "keypoints2d.npy", np.full_like(points, np.nan))
    index = json.loads((folder / "index.json").read_text())
    index |= {"version": version}
    if version is None:
        del index["version"]
    (folder / "index.json").write_text(json.dumps(index))
    for _ in range(2):
        read = HumanData.load(path, cache=True).columns["keypoints2d"]
        np.testing.assert_array_equal(read, points)


def test_the_same_columns_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_human_data(tmp_path / name, columns())
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_the_focal_length_comes_from_k_or_from_its_column(tmp_path: Path) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns())
    assert HumanData.load(path).focal(0, (8, 6)) == (50.0, (3.0, 4.0))
    rest = {name: value for name, value in columns().items() if name != "K"}
    write_human_data(path, rest | {"focal_length": np.full((5, 1), 70.0)})
    assert HumanData.load(path).focal(0, (8, 6)) == (70.0, (3.0, 4.0))


def test_matrices_of_cameras_may_be_flat(tmp_path: Path) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns() | {"K": columns()["K"].reshape(5, 9)})
    for _ in range(2):  # the second one from the cache
        assert HumanData.load(path, cache=True).focal(0, (8, 6)) == (50.0, (3.0, 4.0))
    rest = {name: value for name, value in columns().items() if name != "K"}
    write_human_data(path, rest | {"focal_length": np.zeros((5, 0))})
    with pytest.raises(DataError, match=r"focal_length has shape \(5, 0\)"):
        HumanData.load(path)
    write_human_data(path, columns() | {"K": np.ones((5, 4))})
    with pytest.raises(DataError, match=r"K has shape \(5, 4\); expected .*\(N, 9\)"):
        HumanData.load(path)


def test_key_points_keep_to_their_mask(tmp_path: Path) -> None:
    """Compressed or not, only the points that the file has are kept, and which ones they are."""
    path = tmp_path / "people.npz"
    points = columns()["keypoints2d"]
    mask = np.zeros(17)
    mask[[2, 5, 11]] = 1
    for compressed in (False, True):
        stored = points[:, mask > 0] if compressed else points
        np.savez(
            path, image_path=columns()["image_path"], keypoints2d=stored, keypoints2d_mask=mask,
            __keypoints_compressed__=compressed, keypoints2d_convention="coco",
        )  # fmt: skip
        for _ in range(2):  # the second one from the cache
            data = HumanData.load(path, cache=True)
            np.testing.assert_array_equal(data.columns["keypoints2d"], points[:, [2, 5, 11]])
            assert data.header == Header(17, (2, 5, 11), "coco", None)
    np.savez(
        path, image_path=np.array(["a"] * 5), keypoints2d=points, __keypoints_compressed__=True
    )
    with pytest.raises(DataError, match="compressed, without a keypoints2d_mask"):
        HumanData.load(path)
    np.savez(path, image_path=np.array(["a"] * 5), keypoints2d=points, keypoints2d_mask=mask[1:])
    with pytest.raises(DataError, match="has 17 points, keypoints2d_mask 16"):
        HumanData.load(path)


def test_shapes_of_the_neutral_body_come_first(tmp_path: Path) -> None:
    shapes = {"betas": np.ones((2, 10)), "betas_neutral": np.full((2, 10), 3.0)}
    np.savez(tmp_path / "a.npz", image_path=np.array(["a", "b"]), smpl=np.array(shapes))
    assert (HumanData.load(tmp_path / "a.npz").columns["smpl/betas"] == 3).all()


def test_a_box_without_a_score_is_certain(tmp_path: Path) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns() | {"bbox_xywh": np.ones((5, 4))})
    assert HumanData.load(path).columns["bbox_xywh"].shape == (5, 5)


def test_missing_keys_are_named_with_those_found(tmp_path: Path) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns())
    with pytest.raises(DataError, match=r"lack focal_length, smpl/betas; found K, bbox_xywh"):
        HumanData.load(path, required=("image_path", "focal_length", "smpl/betas"))


def test_absent_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such annotation file; set data\.root"):
        HumanData.load(tmp_path / "none.npz")
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match=r"not a readable \.npz file .*; get it again"):
        HumanData.load(broken)


def test_files_of_bedlam_name_their_layout(tmp_path: Path) -> None:
    torch.save({"img_fn": ["a.png"]}, tmp_path / "bedlamcc.npz")
    with pytest.raises(DataError, match=r"looks like a file of torch\.save.*layout=bedlamcc"):
        HumanData.load(tmp_path / "bedlamcc.npz")


def test_complex_numbers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", bbox_xywh=np.ones((2, 4), np.complex64))
    with pytest.raises(DataError, match=r"a\.npz: bbox_xywh has complex numbers"):
        read_columns(tmp_path / "a.npz")


def test_columns_of_different_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns() | {"bbox_xywh": np.ones((4, 5))})
    with pytest.raises(DataError, match="different numbers of rows"):
        HumanData.load(path)


def test_boxes_without_size_are_found(tmp_path: Path) -> None:
    boxes = columns()["bbox_xywh"]
    boxes[1, 2], boxes[3, 3] = 0.0, np.nan
    data = HumanData(tmp_path, columns() | {"bbox_xywh": boxes})
    assert bad_boxes(data).tolist() == [1, 3]
    assert len(data.chosen(np.array([0, 2, 4]))) == 3


def with_tensors(path: Path, **more: object) -> None:
    """As the fitting of SMPL-X writes its results: lists of tensors with a leading 1."""
    known = columns()
    smplx: dict[str, object] = {
        name.partition("/")[2]: [torch.from_numpy(row)[None] for row in column]
        for name, column in known.items()
        if name.startswith("smplx/")
    }
    plain = {name: column for name, column in known.items() if "/" not in name}
    np.savez_compressed(path, **plain, smplx=np.array(smplx | more, dtype=object))


def test_people_without_two_visible_key_points_are_found(tmp_path: Path) -> None:
    known = columns()
    known["keypoints2d"][1, :, 2] = 0  # nobody is visible
    known["keypoints2d"][2, 1:, 2] = 0  # one point
    known["keypoints2d"][3, :, :2] = 7  # at one position
    known["keypoints2d"][4, 0] = np.nan  # not labeled
    path = tmp_path / "people.npz"
    write_human_data(path, known)
    data = HumanData.load(path)
    assert rows_without_extent(data).tolist() == [1, 2, 3]
    assert data.columns["keypoints2d"][4, 0].tolist() == [0, 0, 0]
    assert np.isfinite(data.columns["keypoints2d"]).all()


@pytest.mark.parametrize(("name", "width"), [("bbox_xywh", 3), ("pelvis", 2)])
def test_columns_that_are_too_narrow_are_refused(tmp_path: Path, name: str, width: int) -> None:
    path = tmp_path / "people.npz"
    write_human_data(path, columns() | {name: np.ones((5, width))})
    with pytest.raises(DataError, match=rf"{name} has shape \(5, {width}\); expected \(N, "):
        HumanData.load(path)


def test_lists_of_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "fitted.npz"
    with_tensors(path)
    data = HumanData.load(path)
    for name, column in columns().items():
        np.testing.assert_array_equal(data.columns[name], column)


def test_whole_and_fitted_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "fitted.npz"
    known = columns()
    orient = torch.nn.Parameter(torch.from_numpy(known["smplx/global_orient"]))
    betas = np.empty(5, dtype=object)  # an array of tensors
    betas[:] = list(torch.from_numpy(known["smplx/betas"]))
    with_tensors(path, global_orient=orient, betas=betas)
    data = HumanData.load(path)
    for name, column in known.items():
        np.testing.assert_array_equal(data.columns[name], column)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "'NoneType' object is not iterable"),
        (3.0, "'float' object is not iterable"),
        ("text", "could not convert string to float: 't'"),
        ([], "need at least one array to stack"),
        ([np.zeros(3)] * 4 + [np.zeros(2)], "all input arrays must have the same shape"),
    ],
)
def test_labels_that_are_no_rows_are_named(tmp_path: Path, value: object, problem: str) -> None:
    path = tmp_path / "people.npz"
    known = columns()
    labels = {name.partition("/")[2]: column for name, column in known.items() if "smplx/" in name}
    np.savez(path, image_path=known["image_path"], smplx=np.array(labels | {"transl": value}))
    with pytest.raises(DataError, match=rf"people\.npz: smplx/transl is not usable \({problem}\)"):
        HumanData.load(path)


@pytest.mark.parametrize(("stored", "used"), [(11, 11), (16, 14), (300, 10), (300, 300)])
def test_longer_shapes_are_read_as_far_as_any_row_uses_them(
    tmp_path: Path, stored: int, used: int
) -> None:
    path, known = tmp_path / "people.npz", columns()
    betas = np.zeros((5, stored), np.float32)
    betas[:, :10] = known["smplx/betas"]
    betas[2, used - 1] = 0.5
    labels = {name.partition("/")[2]: column for name, column in known.items() if "smplx/" in name}
    for shaped in (betas, list(torch.from_numpy(betas)[:, None])):  # as an array, and as fitted
        np.savez(path, image_path=known["image_path"], smplx=np.array(labels | {"betas": shaped}))
        read = HumanData.load(path).columns["smplx/betas"]
        np.testing.assert_array_equal(read, betas[:, :used])
    np.savez(path, image_path=known["image_path"], smplx=np.array(labels | {"betas": betas[:, :9]}))
    with pytest.raises(DataError, match=r"has shape \(5, 9\); .* or more coefficients"):
        HumanData.load(path)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("evil"),))


@pytest.mark.parametrize("beside", ["nothing", "tensors"])
def test_a_file_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if beside == "tensors":
        with_tensors(Path("evil.npz"), keypoints=Evil())
    else:
        np.savez("evil.npz", image_path=np.array(["a"]), smplx=np.array(Evil(), dtype=object))
    with pytest.raises(DataError, match=r"evil\.npz, key smplx: refused.*asks for pathlib"):
        HumanData.load("evil.npz")
    assert not Path("evil").exists()
    assert b"touch" in pickle.dumps(Evil())
