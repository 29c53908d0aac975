"""Everyday poses: standing, walking, sitting, reaching, within joint limits.

Limbs are described by direction and bending angle in the frame of the torso, so the same sample
fits any body, whatever its rest pose.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from overt.data.rng import choose, cumulative, uniform
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle

Array = NDArray[np.float64]

KINDS = {"stand": 0.3, "walk": 0.2, "sit": 0.15, "reach": 0.2, "free": 0.15}
# Shoulder, elbow, wrist; hip, knee, ankle: left, then right.
ARMS = ((16, 18, 20), (17, 19, 21))
LEGS = ((1, 4, 7), (2, 5, 8))
UPPER, HINGES, ENDS = np.array([*LEGS, *ARMS]).T  # (4,) each
# Largest bending angles of joints, in radians.
ELBOW, KNEE = (0.05, 2.4), (0.0, 2.4)
SPINE, NECK, HEAD, COLLAR, WRIST, ANKLE, FINGER = 0.09, 0.15, 0.18, 0.06, 0.3, 0.18, 0.12
LIMIT = 2.5  # of their standard deviations
# Joints that stay near their rest, in the order in which they are sampled.
_CALM = {3: SPINE, 6: SPINE, 9: SPINE, 12: NECK, 15: HEAD, 13: COLLAR, 14: COLLAR,
         20: WRIST, 21: WRIST, 7: ANKLE, 8: ANKLE}  # fmt: skip
_CALM_JOINTS, _CALM_SPREADS = list(_CALM), np.array(list(_CALM.values()))[:, None]
_KINDS, _KIND_SUMS = list(KINDS), cumulative(list(KINDS.values()))
# Knees bend backward, elbows forward.
_BENDS_TO = np.outer((-1, -1, 1, 1), (0.0, 0.0, 1.0))


class Limb(NamedTuple):
    """Direction of a limb's upper half in the frame of the torso, and the bend of its hinge."""

    direction: Array  # (3,) unit: x to the person's left, y up, z forward
    twist: float  # about that direction
    bend: float  # of elbow or knee


class PoseSketch(NamedTuple):
    """A sampled pose in which rotations of upper limbs are not multiplied out yet."""

    body: Array  # (22, 3) axis-angle, without pelvis and upper limbs
    limbs: Array  # (2, 4, 3) axis-angle of UPPER; see `upper_limbs`
    hands: Array  # (2, 15, 3) axis-angle
    kind: str


def draw_pose(rng: np.random.Generator, rest_joints: Array) -> tuple[Array, Array, str]:
    """Sample body (21, 3) and hands (2, 15, 3), axis-angle, for rest joints (22, 3), and a kind."""
    body, limbs, hands, kind = sketch_pose(rng, rest_joints)
    body[UPPER] = upper_limbs(limbs)
    return body[1:], hands, kind


def upper_limbs(turns: Array) -> Array:  # (..., 2, 4, 3) to (..., 4, 3)
    """Multiply two rotations of each upper limb.

    For many people at once: each operation on small tensors costs the same.
    """
    first, second = axis_angle_to_matrix(torch.from_numpy(turns)).unbind(-4)
    return np.asarray(matrix_to_axis_angle(first @ second))


def sketch_pose(rng: np.random.Generator, rest_joints: Array) -> PoseSketch:
    """Sample a pose for rest joints (22, 3)."""
    kind = _KINDS[choose(rng, _KIND_SUMS)]
    body = np.zeros((22, 3))
    body[_CALM_JOINTS] = _limited(rng, _CALM_SPREADS, (len(_CALM), 3))
    lean = uniform(rng, 0.0, 0.25) if kind in ("sit", "reach", "free") else rng.normal(0, 0.05)
    body[3:10:3, 0] += lean / 3
    limbs = [*_legs(rng, kind), *_arms(rng, kind)]
    directions, hinges = _at_rest(rest_joints.tobytes())
    body[HINGES] = hinges * np.array([[limb.bend] for limb in limbs])
    return PoseSketch(body, _turns(directions, limbs), _limited(rng, FINGER, (2, 15, 3)), kind)


def _limited(rng: np.random.Generator, spread: float | Array, shape: tuple[int, ...]) -> Array:
    return (spread * rng.standard_normal(shape)).clip(-LIMIT * spread, LIMIT * spread)


@lru_cache(maxsize=4)
def _at_rest(rest_joints: bytes) -> tuple[Array, Array]:
    """Return unit directions of upper limbs, and axes of their hinges, (4, 3) each.

    Cached: all people of a body have the same.
    """
    joints = np.frombuffer(rest_joints).reshape(-1, 3)
    directions, hinges = joints[HINGES] - joints[UPPER], joints[ENDS] - joints[HINGES]
    hinges = np.cross(hinges, _BENDS_TO)
    for direction, hinge in zip(directions, hinges, strict=True):
        direction /= np.linalg.norm(direction)
        length = np.linalg.norm(hinge)
        hinge /= length if length >= 1e-9 else math.inf  # no axis: it never bends
    return directions, hinges


def _legs(rng: np.random.Generator, kind: str) -> list[Limb]:
    limbs = []
    stride = uniform(rng, 0.15, 0.65) * (-1, 1)[rng.integers(2)]
    seat = uniform(rng, 1.1, 1.75)
    for side in (1, -1):  # left is where x is positive
        apart = abs(rng.normal(0.04, 0.06))
        forward, bend = rng.normal(0, 0.06), abs(rng.normal(0.05, 0.08))
        if kind == "walk":
            forward = stride * side
            bend = uniform(rng, 0.1, 0.4) if forward > 0 else uniform(rng, 0.3, 1.1)
        elif kind == "sit":
            forward, bend = seat + rng.normal(0, 0.1), uniform(rng, 1.0, 1.9)
            apart = uniform(rng, 0.0, 0.35)
        elif kind == "free":
            forward, bend = uniform(rng, -0.4, 1.5), uniform(rng, 0.0, 1.8)
            apart = uniform(rng, 0.0, 0.6)
        limbs.append(
            Limb(_pointing(apart * side, forward), rng.normal(0, 0.12), _within(bend, KNEE))
        )
    return limbs


def _arms(rng: np.random.Generator, kind: str) -> list[Limb]:
    limbs = []
    swing = uniform(rng, -0.5, 0.5)
    reaching_side = ("left", "right", "both")[rng.integers(3)]
    for side in (1, -1):
        apart, forward = abs(rng.normal(0.2, 0.12)), rng.normal(0.05, 0.15)
        bend = abs(rng.normal(0.35, 0.25))
        reaches = kind == "reach" and reaching_side in ("both", "left" if side > 0 else "right")
        if kind == "walk":
            forward, bend = swing * side, uniform(rng, 0.2, 1.2)
        elif kind == "sit":
            forward, bend = uniform(rng, 0.1, 0.8), uniform(rng, 0.5, 1.9)
        elif reaches:
            forward, apart = uniform(rng, 0.6, 2.7), uniform(rng, 0.0, 0.9)
            bend = uniform(rng, 0.05, 0.9)
        elif kind == "free":
            forward, apart = uniform(rng, -0.5, 2.7), uniform(rng, 0.0, 1.6)
            bend = uniform(rng, 0.05, 2.2)
        elif rng.random() < 0.25:  # hands at the hips, arms folded, a telephone
            forward, bend = uniform(rng, -0.2, 0.7), uniform(rng, 1.0, 2.3)
        limbs.append(
            Limb(_pointing(apart * side, forward), rng.normal(0, 0.35), _within(bend, ELBOW))
        )
    return limbs


def _pointing(apart: float, forward: float) -> Array:
    """Return the direction of a hanging limb swung forward, then sideways, by these radians."""
    down = math.cos(apart)
    return np.array([math.sin(apart), down * -math.cos(forward), down * math.sin(forward)])


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _turns(directions_at_rest: Array, limbs: list[Limb]) -> Array:
    """Return rotations (2, N, 3): twists, and those that point limbs along their directions."""
    turns = np.empty((2, len(limbs), 3))
    for number, (first, limb) in enumerate(zip(directions_at_rest, limbs, strict=True)):
        # By hand: functions of numpy take longer to check three numbers than to use them.
        (a, b, c), (x, y, z) = first.tolist(), limb.direction.tolist()
        axis = np.array([b * z - c * y, c * x - a * z, a * y - b * x])
        sine, cosine = math.sqrt(axis.dot(axis)), float(first.dot(limb.direction))
        turns[0, number] = limb.direction * limb.twist
        if sine < 1e-9:  # along it, or exactly against
            turns[1, number] = math.atan2(sine, cosine), 0.0, 0.0
        else:
            turns[1, number] = axis / sine * math.atan2(sine, cosine)
    return turns
