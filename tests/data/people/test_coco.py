"""Files of detectors in COCO's format: people by picture, masks pixel by pixel, bad rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.data.people.coco import (
    Row,
    decode_counts,
    decode_runs,
    fill_polygons,
    read_detections,
    read_runs,
)
from overt.errors import DataError

BOX = [3, 4, 20, 30]
SIZE = (40, 60)
# Columns of a mask of three rows: person, background, the lower two.
COLUMNS = {"size": [3, 3], "counts": [0, 3, 4, 2]}


def write(folder: Path, content: Any) -> Path:
    path = folder / "detections.json"
    path.write_text(json.dumps(content))
    return path


def people(folder: Path, content: Any, *pictures: str) -> list[list[Row]]:
    chosen = [Path(name) for name in pictures or ("photo.jpg",)]
    return read_detections(write(folder, content), chosen)


def one(folder: Path, **row: Any) -> Row:
    (rows,) = people(folder, [{"image_id": "photo", **row}])
    return rows[0]


# --- masks ---------------------------------------------------------------------------------------


def test_runs_go_down_the_columns() -> None:
    expected = [[1, 0, 0], [1, 0, 1], [1, 0, 1]]
    np.testing.assert_array_equal(decode_runs(read_runs(COLUMNS, "mask")), expected)
    wide = decode_runs(read_runs({"size": [2, 3], "counts": [1, 1, 3, 1]}, "mask"))
    np.testing.assert_array_equal(wide, [[0, 0, 0], [1, 0, 1]])


def test_compressed_runs_are_those_of_the_list() -> None:
    """The text was written by COCO's own tools: several characters, and negative differences."""
    counts = [6, 1, 40, 4, 5, 4, 5, 4, 21]
    assert decode_counts("61X13mN000`0", "mask") == counts
    masks = [
        decode_runs(read_runs({"size": [10, 9], "counts": given}, "mask"))
        for given in (counts, "61X13mN000`0")
    ]
    np.testing.assert_array_equal(*masks)
    assert np.argwhere(masks[0])[0].tolist() == [0, 5]
    assert masks[0].sum() == 1 + 4 + 4 + 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"size": [3, 3], "counts": [4, 4]}, "add up to 8; .* cover 3 x 3 = 9"),
        ({"size": [3, 3], "counts": [-1, 10]}, "finite numbers up to 9"),
        ({"size": [3, 3], "counts": [-1, 5, 5]}, "whole run lengths"),
        ({"size": [3, 3], "counts": [4.5, 4.5]}, "whole run lengths"),
        ({"size": [3, 3], "counts": [[4, 5]]}, "whole run lengths"),
        ({"size": [3, 3], "counts": [float("nan"), 9]}, "finite numbers"),
        ({"size": [3, 3], "counts": None}, "finite numbers"),
        ({"size": [3, 3], "counts": {}}, "expected numbers"),
        ({"size": [3, 3], "counts": "Ä"}, "not COCO's compressed text"),
        ({"size": [3, 3], "counts": "o" * 50}, "not COCO's compressed text"),
        ({"size": [3, 3], "counts": ""}, "add up to 0"),
        ({"size": [3], "counts": [9]}, r"size=\[3\]; expected \[height, width\]"),
        ({"size": [-3, -3], "counts": [9]}, r"expected \[height, width\]"),
        ({"size": [10**12, 10**12], "counts": [10**24]}, r"expected \[height, width\]"),
        ({"counts": [9]}, r"size=None; expected \[height, width\]"),
    ],
)
def test_broken_runs_are_explained(value: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_runs(value, "mask")


def test_polygons_cover_the_pixels_whose_middles_they_contain() -> None:
    square = np.array([[1.0, 2.0], [4.0, 2.0], [4.0, 6.0], [1.0, 6.0]])
    expected = np.zeros((8, 10), bool)
    expected[2:6, 1:4] = True
    for corners in (square, square[::-1], np.roll(square, 1, 0), square - 0.4, square + 0.4):
        np.testing.assert_array_equal(fill_polygons([corners], (8, 10)), expected)
    apart = fill_polygons([square, square + np.array([5, 0])], (8, 10))
    assert apart.sum() == 24
    np.testing.assert_array_equal(fill_polygons([square, square], (8, 10)), expected)
    cut_off = fill_polygons([square - (2, 3)], (8, 10))
    assert np.argwhere(cut_off).max(0).tolist() == [2, 1]
    assert (
        fill_polygons([square + np.array([0, 1000]), square - np.array([1000, 0])], (8, 10)).sum()
        == 0
    )
    rows, columns = np.nonzero(fill_polygons([np.array([[0.0, 0], [8, 0], [0, 8]])], (8, 10)))
    assert (rows + columns).max() == 6
    assert len(rows) == 28


# --- rows ----------------------------------------------------------------------------------------


def test_a_row_has_box_mask_and_limbs(tmp_path: Path) -> None:
    """Limbs are those of the names: shoulders, elbows, wrists, hips, knees, ankles, left first."""
    points = np.stack([10 + np.arange(17), 5 + 2 * np.arange(17), np.full(17, 0.9)], 1)
    runs = {"size": list(SIZE), "counts": [410, 10, 30, 10, 40 * 60 - 460]}
    row = one(tmp_path, bbox=BOX, keypoints=points.ravel().tolist(), segmentation=runs, score=0.8)
    found = row.detection(SIZE)
    assert found.box is not None
    assert found.box.tolist() == BOX
    np.testing.assert_allclose(found.keypoints, points[5:], rtol=1e-6)
    assert found.mask is not None
    assert np.argwhere(found.mask).min(0).tolist() == [10, 10]
    assert found.mask.sum() == 20
    flat = one(tmp_path, segmentation=[[2, 2, 12, 2, 12, 22, 2, 22]]).detection(SIZE)
    assert flat.mask is not None
    assert flat.mask.sum() == 200
    assert flat.box is None
    assert one(tmp_path, keypoints=points.tolist()).keypoints is not None  # rows of three


def test_what_determines_no_camera_is_ignored(tmp_path: Path) -> None:
    """COCO has people without a labeled keypoint, and masks of a few pixels."""
    row = one(tmp_path, bbox=BOX, keypoints=[0] * 51, segmentation=[[1, 1, 2, 1, 2, 2]])
    found = row.detection(SIZE)
    assert (found.mask, found.keypoints) == (None, None)
    assert found.box is not None
    empty = one(tmp_path, bbox=BOX, keypoints=[], segmentation=[]).detection(SIZE)
    assert (empty.mask, empty.keypoints) == (None, None)
    for rest in ({}, {"keypoints": [0] * 51}, {"segmentation": []}):
        with pytest.raises(DataError, match="no bbox, no mask of at least 4 pixels"):
            one(tmp_path, **rest).detection(SIZE)


def test_people_that_a_picture_cannot_show_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"its mask has the size \[3, 3\], the picture \[40, 60\]"):
        one(tmp_path, bbox=BOX, segmentation=COLUMNS).detection(SIZE)
    with pytest.raises(DataError, match="has 0 x 30 pixels inside the picture"):
        one(tmp_path, bbox=[600, 4, 20, 30]).detection(SIZE)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"bbox": [1, 2, 3]}, "row 0: bbox has .*; expected x, y, width, height"),
        ({"bbox": [[1, 2, 3, 4]]}, "expected x, y, width, height"),
        ({"bbox": "wide"}, "bbox is 'wide'; expected numbers"),
        ({"bbox": [1, 2, 3, float("nan")]}, "bbox has .*; expected finite numbers"),
        ({"bbox": [1, 2, 3, 10**400]}, "bbox is .*; expected numbers"),
        ({"bbox": {"x": 1}}, "expected numbers"),
        ({"keypoints": [1.0] * 36}, "keypoints has 36 numbers; .* COCO's 17 points, 51 numbers"),
        ({"keypoints": [float("inf")] * 51}, "expected finite numbers"),
        ({"keypoints": [[1, 2], 3]}, "expected numbers"),
        ({"segmentation": "mask.png"}, "expected polygons, or size and counts"),
        ({"segmentation": [[1, 2, 3]]}, "a polygon of 3 numbers"),
        ({"segmentation": [1, 2, 3, 4, 5, 6]}, "a polygon of 1 numbers"),
        ({"segmentation": [[0, 0, 1e300, 0, 0, 1]]}, "finite numbers up to 1e"),
        ({"score": "high"}, "score='high' is not a number"),
        ({"image_id": None}, "its picture is None; expected a file_name, or an image_id"),
        ({"image_id": {}}, r"its picture is {}; expected"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        one(tmp_path, **row)


# --- pictures ------------------------------------------------------------------------------------


def test_people_are_found_by_the_name_of_their_picture(tmp_path: Path) -> None:
    results = [
        {"image_id": 139, "bbox": [1, 1, 9, 9]},
        {"image_id": "street", "bbox": [2, 2, 9, 9]},
        {"file_name": "train/pair.jpg", "bbox": [3, 3, 9, 9]},
        {"file_name": "test/pair.jpg", "bbox": [4, 4, 9, 9]},
        {"image_id": "street", "bbox": [5, 5, 9, 9]},
        {"image_id": "take.02", "bbox": [6, 6, 9, 9]},
        {"file_name": "take.01.TIF", "bbox": [7, 7, 9, 9]},
    ]
    names = ("a/000000000139.jpg", "street.png", "a/test/pair.jpg", "nobody.jpg")
    found = people(tmp_path, results, *names, "take.01.jpg", "take.02.JPG")
    assert [[row.index for row in rows] for rows in found] == [[0], [1, 4], [3], [], [6], [5]]
    with pytest.raises(DataError, match=r"pair\.jpg may be train/pair\.jpg, test/pair\.jpg; re"):
        people(tmp_path, results, "pair.jpg")
    with pytest.raises(DataError, match=r"no person in nobody\.jpg; it has people in 139, street,"):
        people(tmp_path, results, "nobody.jpg")


def test_names_may_have_the_separators_of_windows(tmp_path: Path) -> None:
    rows = [
        {"file_name": "C:\\photos\\train\\pair.jpg", "bbox": [3, 3, 9, 9]},
        {"file_name": "test\\pair.jpg", "bbox": [4, 4, 9, 9]},
    ]
    path = tmp_path / "people.json"
    path.write_text(json.dumps(rows))
    pictures = [Path("test/pair.jpg"), Path("here/train/pair.jpg")]
    found = read_detections(path, pictures)
    assert [[row.index for row in people] for people in found] == [[1], [0]]


def test_annotations_name_pictures_and_categories(tmp_path: Path) -> None:
    content = {
        "images": [{"id": 7, "file_name": "street.jpg"}, {"id": 8, "file_name": "nobody.jpg"}],
        "categories": [{"id": 3, "name": "person"}, {"id": 1, "name": "car"}],
        "annotations": [
            {"image_id": 7, "category_id": 1, "bbox": BOX},
            {"image_id": 7, "category_id": 3, "bbox": BOX, "iscrowd": 0},
            {"image_id": 7, "category_id": 3, "bbox": BOX, "iscrowd": 1},
        ],
    }
    found = people(tmp_path, content, "street.jpg", "nobody.jpg")
    assert [[row.index for row in rows] for rows in found] == [[1], []]
    tables = [{"image_id": 7.0, "category_id": 1.0, "bbox": BOX}]  # numbers as pandas writes them
    assert len(people(tmp_path, tables, "7.jpg")[0]) == 1


def test_boxes_by_picture_name_are_the_simple_form(tmp_path: Path) -> None:
    content = {"street.jpg": [BOX, [1, 2, 30, 40]], "park.jpg": []}
    street, park = people(tmp_path, content, "street.jpg", "park.jpg")
    assert [row.box.tolist() for row in street if row.box is not None] == [BOX, [1, 2, 30, 40]]
    assert park == []


def test_other_categories_and_low_scores_are_ignored(tmp_path: Path) -> None:
    rows = [
        {"image_id": "photo", "bbox": BOX, "score": 0.5},
        {"image_id": "photo", "bbox": BOX, "score": 0.51, "category_id": 1},
        {"image_id": "photo", "bbox": BOX, "score": float("nan")},
        {"image_id": "photo", "bbox": BOX, "score": 0.9, "category_id": 17},
    ]
    assert [row.index for row in people(tmp_path, rows)[0]] == [1]
    with pytest.raises(DataError, match=r"no person with a score above 0\.5; category_id is 0, 17"):
        people(tmp_path, [{"category_id": 0, "bbox": BOX}, {"category_id": 17}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "expected a list of objects, got 3"),
        ([BOX], "row 0: expected an object with image_id and bbox, got .*; boxes alone are for"),
        ([], "no rows; expected people"),
        ({}, "no rows; expected people"),
        ({"annotations": 3}, "annotations: expected a list of objects"),
        ({"annotations": [], "images": [3]}, "images, row 0: expected an object"),
        ({"annotations": [], "categories": {}}, "categories: expected a list"),
        ({"photo.jpg": 3}, "lists of boxes by picture name; 'photo.jpg' has 3"),
        ({"photo.jpg": [3]}, "photo.jpg, row 0: bbox has 3; expected x, y, width, height"),
        ({"annotations": [{"category_id": [], "image_id": []}]}, "no person with a score above"),
    ],
)
def test_other_files_are_explained(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"--detections .*{message}"):
        people(tmp_path, content)


def test_a_file_that_is_not_json_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    with pytest.raises(DataError, match="cannot be read"):
        read_detections(path, [Path("photo.jpg")])
    for text in (b"\xff\xd8\xff", b"{", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(DataError, match=r"--detections .*not valid JSON"):
            read_detections(path, [Path("photo.jpg")])
