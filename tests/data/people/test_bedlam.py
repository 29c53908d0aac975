"""overt/data/people/bedlam.py: both published layouts are read, and what is missing is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overt.data.people.bedlam import read_bedlam
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


def test_both_forms_of_bedlam_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bedlamcc.npz"
    known = columns()
    known["smplx/betas"] = np.pad(known["smplx/betas"], ((0, 0), (0, 1)), constant_values=0.5)
    smplx = {
        name.partition("/")[2]: torch.from_numpy(column)[:, None]
        for name, column in known.items()
        if name.startswith("smplx/")
    }
    torch.save(
        {
            "img_fn": [f"seq/{row}.png" for row in range(5)],
            "focal_length": torch.full((5,), 60.0),
            "center": torch.full((5, 2), 20.0),
            "scale": torch.full((5,), 10.0),
            "smplx": smplx,
        },
        path,
    )
    data = read_bedlam(path)
    np.testing.assert_array_equal(data.columns["smplx/body_pose"], known["smplx/body_pose"])
    np.testing.assert_array_equal(data.columns["smplx/betas"], known["smplx/betas"])  # eleven
    assert data.columns["bbox_xywh"][0].tolist() == [15.0, 15.0, 10.0, 10.0, 1.0]
    torch.save(
        {
            "img_fn": [f"{row}.png" for row in range(5)],
            "sequence_name": ["seq"] * 5,
            "pelvis_camcoord": torch.ones(5, 3, 1),
            "body_pose": [torch.zeros(1, 63)] * 5,
        },
        path,
    )
    data = read_bedlam(path)
    assert data.columns["image_path"][0] == "seq/0.png"
    assert data.columns["pelvis"].shape == (5, 3)


def test_pictures_are_found_in_the_published_folder(tmp_path: Path) -> None:
    path = tmp_path / "bedlamcc.npz"
    names = ["seq_000123/seq_000123_0007.png", "/where/it/was/made/png/seq_000124/a.png"]
    windows = [names[0].replace("/", "\\"), names[1]]
    torch.save({"img_fn": windows, "pelvis_camcoord": torch.ones(2, 3, 1)}, path)
    images = tmp_path / "bedlamcc"
    images.mkdir()
    assert read_bedlam(path, images).columns["image_path"].tolist() == names
    (images / "png").mkdir()
    found = read_bedlam(path, images).columns["image_path"].tolist()
    assert found == ["png/seq_000123/seq_000123_0007.png", "png/seq_000124/a.png"]


def test_arrays_of_numpy_are_read(tmp_path: Path) -> None:
    """Scripts save labels as they have them: names, numbers and tensors of other types."""
    path = tmp_path / "bedlamcc.npz"
    content = {
        "img_fn": np.array(["seq/0.png", "seq/1.png"]),
        "focal_length": [np.float64(60.0), np.float64(61.0)],
        "center": np.full((2, 2), 20.0),
        "scale": torch.full((2,), 10.0, requires_grad=True),
        "pelvis_camcoord": np.asfortranarray(np.arange(6.0).reshape(2, 3, 1)),
        "betas": [torch.ones(1, 10, dtype=torch.bfloat16)] * 2,
    }
    torch.save(content, path)
    data = read_bedlam(path)
    assert data.columns["image_path"].tolist() == ["seq/0.png", "seq/1.png"]
    assert data.columns["focal_length"].tolist() == [[60.0], [61.0]]
    assert data.columns["bbox_xywh"].tolist() == [[15.0, 15.0, 10.0, 10.0, 1.0]] * 2
    assert data.columns["pelvis"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert (data.columns["smplx/betas"] == 1).all()


def test_what_a_file_asks_for_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bedlamcc.npz"
    torch.save({"img_fn": [Path("a.png")]}, path)
    with pytest.raises(DataError, match=r"plain values \(it asks for pathlib[\w.]*\); nothing"):
        read_bedlam(path)


def test_bedlam_without_a_depth_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bedlamcc.npz"
    torch.save({"img_fn": ["a.png"], "hw": torch.ones(1, 2)}, path)
    with pytest.raises(DataError, match=r"neither pelvis_camcoord nor smplx.*found img_fn, hw"):
        read_bedlam(path)
    torch.save({"names": []}, path)
    with pytest.raises(DataError, match="lack img_fn; found names"):
        read_bedlam(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"img_fn": ["a.png"]}, "different numbers of rows: {'image_path': 1, 'bbox_xywh': 2"),
        ({"img_fn": []}, "it has no rows: img_fn is empty"),
        ({"img_fn": 5}, "img_fn is a int; expected a list of names"),
        ({"sequence_name": ["a"] * 3}, "{'img_fn': 2, 'sequence_name': 3}"),
        ({"center": torch.ones(2, 3)}, r"center is not usable .*expected \('N', 2\)"),
        ({"scale": torch.ones(3)}, "{'center': 2, 'scale': 3}"),
        ({"focal_length": ["long", "short"]}, "focal_length is not usable .*convert string"),
        ({"focal_length": 5.0}, "focal_length is not usable .*numbers for each person"),
        ({"smplx": {"betas": torch.ones(2, 1, 9)}}, r"betas is not usable .*\('N', 10\)"),
        ({"smplx": [1, 2]}, "smplx is a list; expected a dictionary with global_orient"),
    ],
)
def test_what_is_no_row_for_each_person_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = tmp_path / "bedlamcc.npz"
    content = {
        "img_fn": ["a.png", "b.png"],
        "center": torch.ones(2, 2),
        "scale": torch.ones(2),
        "focal_length": torch.ones(2),
        "smplx": {"transl": torch.ones(2, 3)},
    }
    torch.save(content | changed, path)
    with pytest.raises(DataError, match=message):
        read_bedlam(path)


def test_junk_is_no_file_of_bedlam(tmp_path: Path) -> None:
    for junk in (b"junk", b"junk\n", b""):
        (tmp_path / "junk.npz").write_bytes(junk)
        with pytest.raises(DataError, match=r"not a dictionary of torch\.save"):
            read_bedlam(tmp_path / "junk.npz")
