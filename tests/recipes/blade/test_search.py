"""Without a box, the person is the one on whose limbs windows agree, look after look."""

from collections.abc import Callable

import numpy as np
import pytest

from overt.data.people.crops import Crop
from overt.errors import ConfigError
from overt.recipes.blade.config import MOST_SCALES, EvaluationSettings
from overt.recipes.blade.search import (
    CANDIDATES,
    CLOSER_ALONE,
    DISSENT,
    LOOKS,
    NEAR,
    SIZE_POWER,
    Sightings,
    agreement,
    distinct,
    find_person,
    likelihood,
    overlap,
    windows,
)

SIZE = (300, 400)
# Limb joints in a box, 0 to 1: shoulders, elbows, wrists, hips, knees, ankles.
POSE = np.array(
    [[0.7, 0.2], [0.3, 0.2], [0.8, 0.35], [0.2, 0.35], [0.9, 0.5], [0.1, 0.5],
     [0.6, 0.5], [0.4, 0.5], [0.6, 0.7], [0.4, 0.7], [0.6, 0.95], [0.4, 0.95]],
    np.float32,
)  # fmt: skip
IMAGINED = (0.3, 0.2, 0.4, 0.6)  # the person in a window that shows none, in sides


def sight(crops: list[Crop], people: list[tuple[float, ...]]) -> Sightings:
    """Return what a model sees: the largest person inside a window, or an imagined one."""
    boxes = []
    for (x, y), side, *_ in crops:
        corner = np.array([x - side / 2, y - side / 2])
        seen = [
            box for box in people
            if (corner <= box[:2]).all()
            and (corner + side >= np.add(box[:2], box[2:])).all()
            and side < 3 * max(box[2:])
        ]  # fmt: skip
        shown = max(seen, key=lambda box: box[3], default=None)
        imagined = np.array([*(corner + side * np.array(IMAGINED[:2])), side * 0.4, side * 0.6])
        boxes.append(imagined if shown is None else np.array(shown))
    rows = np.array(boxes, np.float32)
    limbs = rows[:, None, :2] + rows[:, None, 2:] * POSE
    where = np.array([(*crop.centre, crop.side) for crop in crops], np.float32)
    return Sightings(where, limbs, np.ones((len(rows), 12), np.float32), rows, 0.3 * rows[:, 3])


def around(box: np.ndarray) -> Crop:
    x, y, width, height = (float(number) for number in box)
    return Crop((x + width / 2, y + height / 2), 1.25 * max(width, height))


def assert_around(crop: Crop, person: tuple[float, ...]) -> None:
    expected = around(np.array(person))
    np.testing.assert_allclose([*crop.centre, crop.side], [*expected.centre, expected.side], 1e-5)


def looker(people: list[tuple[float, ...]]) -> Callable[[list[Crop]], Sightings]:
    return lambda crops: sight(crops, people)


@pytest.mark.parametrize("person", [(300.0, 170.0, 25.0, 60.0), (20.0, 10.0, 40.0, 90.0)])
def test_a_small_person_is_found(person: tuple[float, ...]) -> None:
    crop = find_person(looker([person]), around, SIZE, 5)
    assert_around(crop, person)


def test_the_whole_picture_alone_misses_it() -> None:
    person = (300.0, 170.0, 25.0, 60.0)
    crop = find_person(looker([person]), around, SIZE, 1)
    assert np.hypot(crop.centre[0] - 312.5, crop.centre[1] - 200) > 100
    # Each crop is 0.6 x 1.25 of the one before.
    assert crop.side == pytest.approx(400 * 0.75**CLOSER_ALONE)


def test_of_several_people_one_is_found() -> None:
    people = [(40.0, 30.0, 60.0, 140.0), (300.0, 150.0, 30.0, 80.0)]
    crop = find_person(looker(people), around, SIZE, 5)
    assert_around(crop, people[0])  # the larger one


def test_what_is_gone_at_a_closer_look_is_no_person() -> None:
    """A shape that looks like a person from afar: all windows of the grid agree on it."""
    illusion, person = (150.0, 20.0, 110.0, 260.0), (300.0, 170.0, 25.0, 60.0)
    calls = []

    def look(crops: list[Crop]) -> Sightings:
        calls.append(len(crops))
        return sight(crops, [illusion, person] if len(calls) == 1 else [person])

    crop = find_person(look, around, SIZE, 5)
    assert_around(crop, person)
    assert len(calls) == 1 + LOOKS
    assert max(calls[1:]) <= CANDIDATES + 1


@pytest.mark.parametrize("size", [SIZE, (300, 300), (90, 400), (1001, 17)])
def test_windows_cover_the_picture(size: tuple[int, int]) -> None:
    height, width = size
    squares = windows(size, 4)
    assert squares[0] == Crop((width / 2, height / 2), float(max(size)))
    for side in {crop.side for crop in squares}:
        for axis, extent in enumerate((width, height)):
            centers = sorted({crop.centre[axis] for crop in squares if crop.side == side})
            assert centers[0] <= side / 2 + 1e-6
            assert centers[-1] >= extent - side / 2 - 1e-6
            assert np.diff(centers).max(initial=0) <= side / 2 + 1e-6
    assert len(windows((300, 300), 5)) == 1 + 4 + 9 + 25 + 49


def test_a_window_has_no_say_about_its_own_person() -> None:
    grid = sight([Crop((200.0, 150.0), 100.0), Crop((210.0, 150.0), 100.0)], [])
    # Limbs are 10 pixels apart, and the torso is 18 pixels long; one window never agrees.
    expected = np.exp(-((10 / (NEAR * 18)) ** 2)) / (1 + DISSENT)
    np.testing.assert_allclose(agreement(grid, grid, is_grid=True), expected, rtol=1e-3)
    own = (expected * (1 + DISSENT) + 1) / (2 + DISSENT)
    np.testing.assert_allclose(agreement(grid, grid), own, rtol=1e-3)


def test_windows_that_miss_a_person_have_no_say() -> None:
    person = (190.0, 130.0, 20.0, 40.0)
    near, elsewhere, large = (
        Crop((200.0, 150.0), 80.0),
        Crop((90.0, 150.0), 80.0),
        Crop((200.0, 150.0), 200.0),
    )
    people = sight([near], [person])
    for crops, count in (
        ([near], 1),
        ([near, elsewhere], 1),
        ([near, large], 1),
        ([near, near], 2),
    ):
        value = agreement(people, sight(crops, [person]))
        np.testing.assert_allclose(value, count / (count + DISSENT), rtol=1e-5)


def test_larger_people_are_a_little_likelier() -> None:
    crops = [Crop((200.0, 150.0), side) for side in (100.0, 120.0)]
    one = sight(crops, [(190.0, 130.0, 20.0, 40.0)])
    two = sight(
        [Crop((200.0, 150.0), 2 * crop.side) for crop in crops], [(180.0, 110.0, 40.0, 80.0)]
    )
    ratio = likelihood(two, two) / likelihood(one, one)
    np.testing.assert_allclose(ratio, 2**SIZE_POWER, rtol=1e-4)


def test_people_are_looked_at_once() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [50, 0, 10, 10]], np.float32)
    assert distinct(boxes, np.array([0.2, 0.9, 0.1], np.float32)) == [1, 2]
    assert overlap(boxes[0], boxes[1]) == pytest.approx(90 / 110)
    assert overlap(boxes[0], boxes[2]) == 0


@pytest.mark.parametrize("scales", [0, MOST_SCALES + 1])
def test_only_useful_numbers_of_scales_are_allowed(scales: int) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.search_scales"):
        EvaluationSettings("people_test", None, 1, None, drawn=1, search_scales=scales)
