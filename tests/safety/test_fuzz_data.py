"""Fuzz: lists of skulls, annotations and detections of people, tracks: parsed, or a DataError."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import JSON, examples, parses_or_refuses, spoilt
from hypothesis import given
from hypothesis import strategies as st

from overt.data.images.arrays import ImageArrays
from overt.data.people.coco import read_detections
from overt.data.people.human_data import HumanData, write_human_data
from overt.data.skulls.lists import DATASETS, SkullList, load_cloud, read_list
from overt.data.tracking import kubric, packed
from overt.files.pickles import load_pickle

ROWS = st.sampled_from(
    ("complete_skull/000.nrrd", "a/complete_skull/1_surf.npy", "../complete_skull/x.nrrd", "", '"',
     "complete_skull/", "complete_skull/.nrrd", "/complete_skull/2.nrrd", "x\0y", ",,,")
)  # fmt: skip
DTYPES = st.sampled_from(("u1", "i8", "f4", "f8", "?", "c8", "U3", "M8[s]"))
SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)
ARRAYS = st.builds(np.zeros, SHAPES, DTYPES)


@examples(50)
@given(st.lists(ROWS | st.text(max_size=8), max_size=4), st.binary(max_size=4))
def test_lists_of_skulls(tmp_path: Path, rows: list[str], more: bytes) -> None:
    file = tmp_path / "train.csv"
    file.write_bytes("\n".join(rows).encode("utf-8", "surrogatepass") + more)
    if parses_or_refuses(lambda: read_list(file)):
        for dataset in DATASETS:
            parses_or_refuses(lambda dataset=dataset: SkullList(file, dataset).check(1, 1))


def npz(**content: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    return buffer.getvalue()


@pytest.fixture
def people(tmp_path: Path) -> bytes:
    columns = {
        "image_path": np.array(["a.jpg", "b.jpg"]),
        "bbox_xywh": np.ones((2, 5), np.float32),
        "smplx/body_pose": np.zeros((2, 21, 3), np.float32),
        "smplx/betas": np.zeros((2, 10), np.float32),
    }
    write_human_data(tmp_path / "good.npz", columns)
    return (tmp_path / "good.npz").read_bytes()


@examples(50)
@given(st.data())
def test_spoilt_annotations_of_people(tmp_path: Path, people: bytes, data: st.DataObject) -> None:
    file = tmp_path / "people.npz"
    file.write_bytes(data.draw(spoilt(people)))
    parses_or_refuses(lambda: HumanData.load(file))


@examples(40)
@given(st.data())
def test_annotations_of_people_with_other_arrays(tmp_path: Path, data: st.DataObject) -> None:
    content: dict[str, Any] = {"image_path": np.array(["a.jpg", "b.jpg"])}
    for name in ("image_path", "bbox_xywh", "keypoints2d", "K", "smplx"):
        if data.draw(st.booleans()):
            content[name] = data.draw(ARRAYS)
    if data.draw(st.booleans()):
        pose = data.draw(ARRAYS | st.lists(st.integers(), max_size=2) | st.none())
        content["smplx"] = np.array({"body_pose": pose}, dtype=object)
    file = tmp_path / "people.npz"
    file.write_bytes(npz(**content))
    parses_or_refuses(lambda: HumanData.load(file))


@examples(40)
@given(st.data())
def test_detections_of_people(tmp_path: Path, data: st.DataObject) -> None:
    row: dict[str, Any] = {"image_id": "a", "bbox": [1, 2, 9, 9], "keypoints": [1] * 51}
    row |= {"segmentation": {"size": [4, 5], "counts": [3, 17]}, "score": 1, "category_id": 1}
    keys = st.sampled_from((*row, "file_name", "iscrowd"))
    row |= data.draw(st.dictionaries(keys, JSON, max_size=2))
    shapes = ([row], {"annotations": [row], "images": [row]}, {"a.jpg": [row["bbox"]]})
    good = json.dumps(data.draw(st.sampled_from(shapes) | JSON)).encode()
    file = tmp_path / "detections.json"
    file.write_bytes(data.draw(st.just(good) | spoilt(good)))

    def read() -> None:
        for person in read_detections(file, [Path("a.jpg")])[0]:
            person.detection((4, 5))

    parses_or_refuses(read)


@examples(40)
@given(st.data())
def test_packed_tracks(tmp_path: Path, data: st.DataObject) -> None:
    frame = np.zeros((2, 3, 3), np.uint8)
    content = {"coords": np.zeros((1, 2, 2), np.float32), "occluded": np.zeros((1, 2), bool)}
    content |= {"frame_000": frame, "frame_001": frame}
    file = tmp_path / "0001.npz"
    if data.draw(st.booleans()):
        file.write_bytes(data.draw(spoilt(npz(**content))))
    else:
        name = data.draw(st.sampled_from((*content, "frame_", "frame_x", "frame_-1")))
        file.write_bytes(npz(**(content | {name: data.draw(ARRAYS)})))
    parses_or_refuses(lambda: packed.read_tracks(file))
    parses_or_refuses(lambda: packed.read_frames(file, [0, 1]))


@examples(40)
@given(st.data())
def test_tracks_of_kubric(tmp_path: Path, data: st.DataObject) -> None:
    sequence = tmp_path / "0001"
    (sequence / "frames").mkdir(parents=True, exist_ok=True)
    (sequence / "frames" / "000.png").touch()
    good = {"coords": np.zeros((1, 1, 2), np.float32), "visibility": np.zeros((1, 1), bool)}
    buffer = io.BytesIO()
    content = good | data.draw(st.dictionaries(st.sampled_from(sorted(good)), ARRAYS))
    np.save(buffer, np.array(content, dtype=object), allow_pickle=True)
    whole = buffer.getvalue()
    (sequence / "0001.npy").write_bytes(data.draw(st.just(whole) | spoilt(whole)))
    parses_or_refuses(lambda: kubric.read_tracks(sequence))


@examples(40)
@given(st.data())
def test_arrays_of_images(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "images.npz"
    good = npz(images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.zeros(2, np.int64))
    other = st.builds(lambda images, labels: npz(images=images, labels=labels), ARRAYS, ARRAYS)
    file.write_bytes(data.draw(spoilt(good) | other))
    parses_or_refuses(lambda: ImageArrays(file))


@examples(40)
@given(st.data())
def test_clouds(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "000_surf.npy"
    buffer = io.BytesIO()
    np.save(buffer, data.draw(ARRAYS))
    file.write_bytes(data.draw(st.just(buffer.getvalue()) | spoilt(buffer.getvalue())))
    parses_or_refuses(lambda: load_cloud(file))


@examples(40)
@given(st.binary(max_size=60))
def test_pickles(data: bytes) -> None:
    parses_or_refuses(lambda: load_pickle(io.BytesIO(data)))
