"""Everyday poses: standing, walking, sitting, reaching, within joint limits.

Limbs are described by direction and bending angle in the frame of the torso, so the same sample
fits any body, whatever its rest pose.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle

Array = NDArray[np.float64]

KINDS = {"stand": 0.3, "walk": 0.2, "sit": 0.15, "reach": 0.2, "free": 0.15}
# Shoulder, elbow, wrist; hip, knee, ankle: left, then right.
ARMS = ((16, 18, 20), (17, 19, 21))
LEGS = ((1, 4, 7), (2, 5, 8))
# Largest bending angles of joints, in radians.
ELBOW, KNEE = (0.05, 2.4), (0.0, 2.4)
SPINE, NECK, HEAD, COLLAR, WRIST, ANKLE, FINGER = 0.09, 0.15, 0.18, 0.06, 0.3, 0.18, 0.12
LIMIT = 2.5  # of their standard deviations
_FORWARD, _DOWN = np.array([0.0, 0.0, 1.0]), np.array([0.0, -1.0, 0.0])


class Limb(NamedTuple):
    """Direction of a limb's upper half in the frame of the torso, and the bend of its hinge."""

    direction: Array  # (3,) unit: x to the person's left, y up, z forward
    twist: float  # about that direction
    bend: float  # of elbow or knee


def draw_pose(rng: np.random.Generator, rest_joints: Array) -> tuple[Array, Array, str]:
    """Sample body (21, 3) and hands (2, 15, 3), axis-angle, for rest joints (22, 3), and a kind."""
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    body = np.zeros((22, 3))
    for joints, spread in (((3, 6, 9), SPINE), ((12,), NECK), ((15,), HEAD), ((13, 14), COLLAR),
                           ((20, 21), WRIST), ((7, 8), ANKLE)):  # fmt: skip
        for joint in joints:
            body[joint] = _limited(rng, spread, 3)
    lean = rng.uniform(0.0, 0.25) if kind in ("sit", "reach", "free") else rng.normal(0, 0.05)
    for joint in (3, 6, 9):
        body[joint, 0] += lean / 3
    limbs = [*_legs(rng, kind), *_arms(rng, kind)]
    first, second, third = np.array([*LEGS, *ARMS]).T  # (4,) each
    body[first] = _turns(rest_joints[second] - rest_joints[first], limbs)
    lower = rest_joints[third] - rest_joints[second]
    # Knees bend backward, elbows forward.
    for limb, joint, direction, forward in zip(limbs, second, lower, (-1, -1, 1, 1), strict=True):
        body[joint] = _hinge(direction, forward * _FORWARD, limb.bend)
    hands = np.clip(rng.normal(0, FINGER, (2, 15, 3)), -LIMIT * FINGER, LIMIT * FINGER)
    return body[1:], hands, kind


def _limited(rng: np.random.Generator, spread: float, count: int) -> Array:
    return np.clip(rng.normal(0, spread, count), -LIMIT * spread, LIMIT * spread)


def _legs(rng: np.random.Generator, kind: str) -> list[Limb]:
    limbs = []
    stride = rng.uniform(0.15, 0.65) * rng.choice([-1, 1])
    seat = rng.uniform(1.1, 1.75)
    for side in (1, -1):  # left is where x is positive
        apart = abs(rng.normal(0.04, 0.06))
        forward, bend = rng.normal(0, 0.06), abs(rng.normal(0.05, 0.08))
        if kind == "walk":
            forward = stride * side
            bend = rng.uniform(0.1, 0.4) if forward > 0 else rng.uniform(0.3, 1.1)
        elif kind == "sit":
            forward, bend = seat + rng.normal(0, 0.1), rng.uniform(1.0, 1.9)
            apart = rng.uniform(0.0, 0.35)
        elif kind == "free":
            forward, bend = rng.uniform(-0.4, 1.5), rng.uniform(0.0, 1.8)
            apart = rng.uniform(0.0, 0.6)
        limbs.append(
            Limb(_pointing(apart * side, forward), rng.normal(0, 0.12), _within(bend, KNEE))
        )
    return limbs


def _arms(rng: np.random.Generator, kind: str) -> list[Limb]:
    limbs = []
    swing = rng.uniform(-0.5, 0.5)
    reaching_side = rng.choice(["left", "right", "both"])
    for side in (1, -1):
        apart, forward = abs(rng.normal(0.2, 0.12)), rng.normal(0.05, 0.15)
        bend = abs(rng.normal(0.35, 0.25))
        reaches = kind == "reach" and reaching_side in ("both", "left" if side > 0 else "right")
        if kind == "walk":
            forward, bend = swing * side, rng.uniform(0.2, 1.2)
        elif kind == "sit":
            forward, bend = rng.uniform(0.1, 0.8), rng.uniform(0.5, 1.9)
        elif reaches:
            forward, apart = rng.uniform(0.6, 2.7), rng.uniform(0.0, 0.9)
            bend = rng.uniform(0.05, 0.9)
        elif kind == "free":
            forward, apart = rng.uniform(-0.5, 2.7), rng.uniform(0.0, 1.6)
            bend = rng.uniform(0.05, 2.2)
        elif rng.random() < 0.25:  # hands at the hips, arms folded, a telephone
            forward, bend = rng.uniform(-0.2, 0.7), rng.uniform(1.0, 2.3)
        limbs.append(
            Limb(_pointing(apart * side, forward), rng.normal(0, 0.35), _within(bend, ELBOW))
        )
    return limbs


def _pointing(apart: float, forward: float) -> Array:
    """Return the direction of a hanging limb swung forward, then sideways, by these radians."""
    direction = np.array([0.0, -math.cos(forward), math.sin(forward)])
    sideways = np.array([1.0, 0.0, 0.0])
    return math.cos(apart) * direction + math.sin(apart) * sideways


def _within(value: float, limits: tuple[float, float]) -> float:
    return float(np.clip(value, *limits))


def _turns(directions_at_rest: Array, limbs: list[Limb]) -> Array:
    """Return rotations (N, 3) that point limbs (N, 3) along their directions, then twist them."""
    turns = []
    for direction_at_rest, limb in zip(directions_at_rest, limbs, strict=True):
        first = direction_at_rest / np.linalg.norm(direction_at_rest)
        axis = np.cross(first, limb.direction)
        sine, cosine = float(np.linalg.norm(axis)), float(first @ limb.direction)
        if sine < 1e-9:  # along it, or exactly against
            axis = np.array([1.0, 0.0, 0.0])
        turns.append(axis / np.linalg.norm(axis) * math.atan2(sine, cosine))
    # All limbs at once: each operation on such small tensors costs the same.
    vectors = torch.tensor(np.stack([[limb.direction * limb.twist for limb in limbs], turns]))
    twist, point = axis_angle_to_matrix(vectors)
    return np.asarray(matrix_to_axis_angle(twist @ point))


def _hinge(direction_at_rest: Array, towards: Array, angle: float) -> Array:
    """Return a rotation (3,) that bends the lower half of a limb from its rest toward a side."""
    axis = np.cross(direction_at_rest, towards)
    length = float(np.linalg.norm(axis))
    return np.zeros(3) if length < 1e-9 else axis / length * angle
