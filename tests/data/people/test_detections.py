"""Detections of people in one picture: what is read, how people are matched, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overt.data.people.crops import BOX_GROWTH
from overt.data.people.detections import (
    LEAST_PX,
    check_picture,
    checked_box,
    collect,
    good_keypoints,
    read_rows,
)
from overt.errors import DataError

SIZE = (40, 60)


def two_masks() -> np.ndarray:  # (2, H, W)
    masks = np.zeros((2, *SIZE), np.uint8)
    masks[0, 5:35, 4:14] = 255
    masks[1, 8:38, 30:50] = 255
    return masks


def limbs(corner: tuple[float, float]) -> np.ndarray:  # (12, 3)
    """Return keypoints 20 pixels high and 10 wide."""
    rows = np.ones((12, 3), np.float32)
    rows[:, 0] = corner[0] + np.tile([0, 10], 6)
    rows[:, 1] = corner[1] + np.linspace(0, 20, 12)
    return rows


def test_nothing_given_is_one_person() -> None:
    (person,) = collect(SIZE)
    assert person == (None, None, None, None)


def test_several_people_have_all_that_is_given_in_its_order(tmp_path: Path) -> None:
    masks, boxes = two_masks(), [[2, 3, 14, 34], [28, 6, 24, 34]]
    points = np.stack([limbs((4, 8)), limbs((32, 10))])
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for file, mask in zip(files, masks, strict=True):
        Image.fromarray(mask).save(file)
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    (tmp_path / "limbs.json").write_text(json.dumps(points.tolist()))
    given = (files, tmp_path / "limbs.json", tmp_path / "boxes.json")
    for people in (collect(SIZE, *given), collect(SIZE, masks, points, np.array(boxes))):
        for number, person in enumerate(people):
            assert person.box is not None
            assert person.box.tolist() == boxes[number]
            np.testing.assert_array_equal(person.mask, masks[number] > 0)
            np.testing.assert_array_equal(person.keypoints, points[number])
            assert person.row == number


def test_the_boxes_of_several_people_follow_from_masks_or_keypoints() -> None:
    by_mask = collect(SIZE, two_masks())
    assert [person.box.tolist() for person in by_mask if person.box is not None] == [
        [4, 5, 10, 30], [30, 8, 20, 30],
    ]  # fmt: skip
    points = np.stack([limbs((4, 8)), limbs((32, 10))])
    points[0, 3] = (55, 39, 0.2)  # does not count
    side = BOX_GROWTH * 20
    first, second = (person.box for person in collect(SIZE, keypoints=points))
    np.testing.assert_allclose(first, [9 - side / 2, 18 - side / 2, side, side])
    np.testing.assert_allclose(second, [37 - side / 2, 20 - side / 2, side, side])
    # One person has none: the model sees what it was trained on.
    assert collect(SIZE, two_masks()[0])[0].box is None
    assert collect(SIZE, keypoints=points[0])[0].box is None


def test_people_that_do_not_match_are_explained() -> None:
    points, boxes = np.stack([limbs((4, 8))] * 3), np.array([[2, 3, 14, 34], [28, 6, 24, 34]])
    with pytest.raises(DataError, match="--boxes has 2, --keypoints has 3; give as many by each"):
        collect(SIZE, None, points, boxes)
    with pytest.raises(DataError, match="--boxes has 2, --mask has 1;"):
        collect(SIZE, two_masks()[:1], None, boxes)
    with pytest.raises(DataError, match=r"person 1: the box \[280, .* has 0 x"):
        collect(SIZE, boxes=np.array([[2, 3, 14, 34], [280, 6, 24, 34]]))
    with pytest.raises(
        DataError, match=r"\(60, 40\) with 2400 .* upright, as the EXIF orientation"
    ):
        check_picture((40, 60), np.ones((60, 40), bool))
    with pytest.raises(DataError, match=r"person 1: the mask is \(40, 60\) with 0 pixels set"):
        collect(SIZE, two_masks() * np.array([1, 0])[:, None, None])
    with pytest.raises(DataError, match="person 0: keypoints with 36 non-finite"):
        collect(SIZE, keypoints=np.stack([np.nan * limbs((4, 8)), limbs((4, 8))]))
    with pytest.raises(DataError, match=r"person 0: keypoints of shape \(11, 3\)"):
        collect(SIZE, keypoints=points[:, :11])
    for wrong in (np.zeros((0, 12, 3)), np.zeros(3), np.zeros((1, 1, 12, 3))):
        with pytest.raises(DataError, match="expected 12 rows of x, y and confidence, or a list"):
            collect(SIZE, keypoints=wrong)
    for masks in (np.zeros((0, *SIZE)), np.zeros(5)):
        with pytest.raises(DataError, match=r"expected \(P, H, W\)"):
            collect(SIZE, masks)
    with pytest.raises(DataError, match=r"rows of x, y, width and height, got \(1, 2\)"):
        collect(SIZE, boxes=np.ones(2))
    with pytest.raises(DataError, match="--boxes: no box; without --boxes"):
        collect(SIZE, boxes=np.zeros((0, 4)))


@pytest.mark.parametrize("option", ["--keypoints", "--boxes"])
def test_files_without_rows_are_explained(tmp_path: Path, option: str) -> None:
    with pytest.raises(DataError, match=rf"{option} .*none\.json: cannot be read \(No such"):
        read_rows(tmp_path / "none.json", option)
    file = tmp_path / "bad.json"
    for text, message in (
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": 1}', "not a JSON list of rows"),
        ("[[1, 2], [3]]", "not a JSON list of rows"),
        ('["a"]', "not a JSON list of rows"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=rf"{option} .*bad\.json: {message}"):
            read_rows(file, option)


def test_keypoints_count_by_confidence_and_position() -> None:
    rows = np.random.default_rng(0).uniform(10, 90, (12, 3)).astype(np.float32)
    rows[:, 2] = 1.0
    rows[0, 2], rows[1, 2], rows[2, 0], rows[3, 1] = 0.5, 0.51, -1, 100
    assert good_keypoints(rows, (100, 100))[:, 2].tolist() == [0, 1, 0, 0, *[1] * 8]
    assert rows[0, 2] == 0.5  # the caller's array stays
    assert good_keypoints(rows[:, :2], (100, 100))[:, 2].sum() == 10
    near = rows.copy()
    near[:, :2] = 50 + np.arange(12)[:, None] / 10
    alone = rows.copy()
    alone[1:, 2] = 0
    alone[0, 2] = 1
    broken = rows.copy()
    broken[:2, 0] = np.nan
    for wrong, message in (
        (near, "within 1 pixels of each other; a camera needs two that are at least 4"),
        (alone, "1 of 12 keypoints have a confidence above 0.5 .* needs at least 2"),
        (broken, "keypoints with 2 non-finite values"),
    ):
        with pytest.raises(DataError, match=message):
            good_keypoints(wrong, (100, 100))


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([100, 100, 1, 1], "has 1 x 1 pixels inside the picture of 300 x 400; .* at least 4 x 4"),
        ([10, 10, 1e-3, 1e-3], "has 0.001"),
        ([5000, 5000, 100, 100], "has 0 x 0 pixels inside"),
        ([297, 10, 100, 100], "has 3 x 100 pixels inside"),
        ([10, 10, -5, 10], "has 0 x 10 pixels inside"),
        ([0, 0, 1e30, 1e30], "more than 10 times as large"),
        ([np.nan, 0, 10, 10], "expected finite x, y, width and height"),
        ([1, 2, 3], "expected finite x, y, width and height"),
    ],
)
def test_boxes_show_a_person(box: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        checked_box(np.array(box, np.float32), (400, 300))


def test_pictures_and_masks_of_a_few_pixels_are_refused() -> None:
    with pytest.raises(DataError, match=r"2 x 3 pixels is too small .* at least 4 x 4"):
        check_picture((3, 2), None)
    dot = np.zeros((LEAST_PX, 600), bool)
    dot[0, 5] = True
    with pytest.raises(DataError, match="a person of 1 pixels"):
        check_picture(dot.shape, dot)
    dot[0, 5:9] = True
    check_picture(dot.shape, dot)
