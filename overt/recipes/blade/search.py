"""Find a person in a photograph by what PoseNet says about many windows of it.

PoseNet finds a person in every window, also where there is none. But limbs of a real person stay
where they are if the window moves, and limbs that it imagines move with the window. So windows of
several sizes are looked at, then the likeliest people in closer and closer crops. The person is the
one on whose limbs most of the windows that contain it agree, at each of these looks. Letters: N
windows, M people.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.people.crops import Crop

Array = NDArray[np.float32]

RATIO = 0.5**0.5  # of the sides of windows of one scale and the next larger
STRIDE = 0.5  # largest distance between windows of one scale, in sides
CANDIDATES = 6  # people who are looked at again
LOOKS = 3  # at each of them
CLOSER_ALONE = 2  # crops around the mesh of the one before, if the whole picture is the only window
SAME = 0.5  # intersection over union from which two boxes are of the same person
CONTAINED = 0.9  # of a person's box, in windows that have a say about the person
# Side of such windows over that of the person: a little more than in training.
SIDES = (0.9, 3.2)
NEAR = 0.35  # torsos at which limbs of two windows agree by 1/e
SHORTEST = 0.15  # torso over the longer side of the box, also of people seen from above
DISSENT = 1.0  # windows that never agree, so that one window alone does not decide
# Power of the size: windows also agree on an arm that looks like a person; the person is larger.
SIZE_POWER = 0.15


class Sightings(NamedTuple):
    """What the model says about windows, in pixels of the picture."""

    windows: Array  # (N, 3) x and y of the center, side
    limbs: Array  # (N, 12, 2)
    visible: Array  # (N, 12) probability that a limb joint is in the window
    boxes: Array  # (N, 4) x, y, width, height of the mesh inside the picture
    torsos: Array  # (N,) distance from shoulders to hips


def find_person(
    look: Callable[[list[Crop]], Sightings],
    crop_around: Callable[[Array], Crop],
    image_size: tuple[int, int],
    scales: int,
) -> Crop:
    """Return the crop that shows the likeliest person best, in windows of `scales` sizes."""
    grid = look(windows(image_size, scales))
    if scales == 1:  # one window has no other to agree with
        crop = crop_around(grid.boxes[0])
        for _ in range(CLOSER_ALONE - 1):
            crop = crop_around(look([crop]).boxes[0])
        return crop
    best = distinct(grid.boxes, likelihood(grid, grid, is_grid=True))[:CANDIDATES]
    if 0 not in best:
        best.append(0)  # the whole picture, in which most people are found
    boxes, looks, likely = grid.boxes[best], [], []
    for _ in range(LOOKS):
        looks.append([crop_around(box) for box in boxes])
        seen = look(looks[-1])
        boxes = seen.boxes
        likely.append(likelihood(seen, grid))
    # Anything but a person changes from look to look, so one of them finds little agreement.
    person = int(np.min(likely, axis=0).argmax())
    return looks[int(np.argmax([row[person] for row in likely]))][person]


def windows(image_size: tuple[int, int], scales: int) -> list[Crop]:
    """Return overlapping squares, the first around the whole picture."""
    height, width = image_size
    squares = []
    for scale in range(scales):
        side = max(height, width) * RATIO**scale
        rows, columns = (_centers(extent, side) for extent in (height, width))
        squares += [Crop((x, y), side) for y in rows for x in columns]
    return squares


def _centers(extent: int, side: float) -> list[float]:
    """Return evenly spaced centers of windows that cover an extent."""
    if extent <= side:
        return [extent / 2]
    count = math.ceil((extent - side) / (STRIDE * side) - 1e-6) + 1
    return [float(center) for center in np.linspace(side / 2, extent - side / 2, count)]


def likelihood(people: Sightings, grid: Sightings, *, is_grid: bool = False) -> Array:  # (M,)
    """Return how likely people are, up to a factor: agreement on their limbs, and their size."""
    longer = people.boxes[:, 2:].max(1)
    return np.asarray(agreement(people, grid, is_grid=is_grid) * longer**SIZE_POWER)


def agreement(people: Sightings, grid: Sightings, *, is_grid: bool = False) -> Array:  # (M,)
    """Return how well windows of the grid that contain a person agree on the limbs, 0 to 1.

    With `is_grid` people are those of the grid, and a window has no say about its own.
    """
    extent = people.boxes[:, 2:].max(1)  # (M,)
    torso = np.maximum(people.torsos, SHORTEST * extent)
    apart = np.linalg.norm(people.limbs[:, None] - grid.limbs, axis=-1)  # (M, N, 12)
    near = np.exp(-((apart / (NEAR * torso[:, None, None])) ** 2))
    weight = people.visible[:, None] + np.float32(1e-6)  # (M, 1, 12)
    agrees = (weight * near).sum(-1) / weight.sum(-1)  # (M, N)
    low, high = people.boxes[:, None, :2], (people.boxes[:, :2] + people.boxes[:, 2:])[:, None]
    corner = grid.windows[:, :2] - grid.windows[:, 2:] / 2
    shared = np.minimum(high, corner + grid.windows[:, 2:]) - np.maximum(low, corner)
    inside = np.clip(shared, 0, None).prod(-1) / people.boxes[:, None, 2:].prod(-1)
    side = grid.windows[:, 2] / extent[:, None]
    has_say = (inside > CONTAINED) & (side > SIDES[0]) & (side < SIDES[1])
    if is_grid:
        np.fill_diagonal(has_say, False)
    return np.asarray((agrees * has_say).sum(1) / (has_say.sum(1) + DISSENT))


def distinct(boxes: Array, likely: Array) -> list[int]:
    """Return indices of boxes (M, 4), likeliest first, without those of the same person again."""
    kept: list[int] = []
    for index in np.argsort(-likely, kind="stable"):
        if all(overlap(boxes[index], boxes[other]) < SAME for other in kept):
            kept.append(int(index))
    return kept


def overlap(first: Array, second: Array) -> float:
    """Return the intersection over union of two boxes (4,)."""
    low = np.maximum(first[:2], second[:2])
    high = np.minimum(first[:2] + first[2:], second[:2] + second[2:])
    shared = float(np.clip(high - low, 0, None).prod())
    return shared / (float(first[2:].prod()) + float(second[2:].prod()) - shared)
