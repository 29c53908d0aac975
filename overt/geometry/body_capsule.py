"""A person of capsules in the file layout of SMPL-X: everything runs without licensed files.

Own numbers, own mesh: 55 joints as in SMPL-X, 24 parts, shape numbers for size, legs, arms and
girth. Rest pose: arms out, y up, x to the person's left, facing z, in meters.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.geometry.body import BodyFile

Array = NDArray[np.float64]

# fmt: off
PARENTS = (
    -1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19,  # body
    15, 15, 15,                                                                # jaw, eyes
    20, 25, 26, 20, 28, 29, 20, 31, 32, 20, 34, 35, 20, 37, 38,                # left fingers
    21, 40, 41, 21, 43, 44, 21, 46, 47, 21, 49, 50, 21, 52, 53,                # right fingers
)
_LEFT = {  # joint: place; the right one is mirrored
    1: (.09, -.07, 0), 4: (.10, -.47, .01), 7: (.10, -.88, -.02), 10: (.11, -.94, .10),
    13: (.07, .42, -.01), 16: (.17, .43, -.01), 18: (.43, .43, -.02), 20: (.68, .43, -.02),
    23: (.03, .64, .08),
}
_MIDDLE = {
    0: (0, 0, 0), 3: (0, .11, -.01), 6: (0, .24, 0), 9: (0, .30, 0), 12: (0, .50, -.02),
    15: (0, .59, .01), 22: (0, .58, .03),
}
_OTHER_SIDE = {1: 2, 4: 5, 7: 8, 10: 11, 13: 14, 16: 17, 18: 19, 20: 21, 23: 24}
# Where each finger begins, beyond the wrist: index, middle, pinky, ring, thumb.
_FINGERS = ((.10, 0, .025), (.10, 0, .008), (.085, 0, -.028), (.095, 0, -.010), (.03, -.01, .035))
_PHALANX = .028
_RADII = {  # by child joint
    1: .10, 2: .10, 3: .125, 6: .13, 9: .135, 12: .10, 15: .055, 13: .07, 14: .07, 16: .06, 17: .06,
    18: .047, 19: .047, 20: .037, 21: .037, 4: .075, 5: .075, 7: .05, 8: .05, 10: .04, 11: .04,
}
_FINGER_RADIUS, _SKULL_RADIUS, _TOE_RADIUS = .009, .10, .035
_SKULL, _TOE = (0, .66, .02), (.11, -.95, .17)
# fmt: on
SIDES, RINGS = 10, 5
FINGER_SIDES, FINGER_RINGS = 6, 2
PARTS = 24
STANDING_HEIGHT_M = 1.72
NEAREST = 40  # vertices that a regressed joint depends on


class Capsule(NamedTuple):
    """A limb between two places, moved by `joint`, with the joints at its ends."""

    start: Array  # (3,)
    end: Array  # (3,)
    radius: float
    joint: int
    child: int | None
    sides: int
    rings: int


def rest_joints() -> Array:
    """Places of the 55 joints at rest, (55, 3)."""
    joints = np.zeros((len(PARENTS), 3))
    for joint, position in {**_MIDDLE, **_LEFT}.items():
        joints[joint] = position
    for left, right in _OTHER_SIDE.items():
        joints[right] = joints[left] * (-1, 1, 1)
    for side, (wrist, first) in enumerate(((20, 25), (21, 40))):
        sign = 1 if side == 0 else -1
        for finger, offset in enumerate(_FINGERS):
            for phalanx in range(3):
                reach = np.array(offset) + np.array([_PHALANX * phalanx, 0, 0])
                joints[first + 3 * finger + phalanx] = joints[wrist] + reach * (sign, 1, 1)
    return joints


def capsules() -> list[Capsule]:
    """All limbs of the person."""
    joints = rest_joints()
    starts = [
        Capsule(joints[PARENTS[child]], joints[child], radius, PARENTS[child], child, SIDES, RINGS)
        for child, radius in _RADII.items()
    ]
    starts.append(Capsule(joints[15], np.array(_SKULL), _SKULL_RADIUS, 15, None, SIDES, RINGS))
    for foot, sign in ((10, 1), (11, -1)):
        toe = np.array(_TOE) * (sign, 1, 1)
        starts.append(Capsule(joints[foot], toe, _TOE_RADIUS, foot, None, SIDES, RINGS))
    for first in range(25, 55, 3):
        wrist = PARENTS[first]
        knuckles = [joints[wrist], *joints[first : first + 3]]
        tip = knuckles[-1] + (knuckles[-1] - knuckles[-2])
        owners = [wrist, first, first + 1, first + 2]
        for index, owner in enumerate(owners):
            end = knuckles[index + 1] if index < 3 else tip
            child = owners[index + 1] if index < 3 else None
            starts.append(
                Capsule(
                    knuckles[index], end, _FINGER_RADIUS, owner, child, FINGER_SIDES, FINGER_RINGS
                )
            )
    return starts


def _frame(direction: Array) -> tuple[Array, Array]:
    """Two directions that stand upright on the given one and on each other."""
    helper = np.eye(3)[np.argmin(np.abs(direction))]
    first = np.cross(direction, helper)
    first /= np.linalg.norm(first)
    return first, np.cross(direction, first)


def _capsule_mesh(capsule: Capsule) -> tuple[Array, NDArray[np.int64], Array]:
    """Vertices, faces, and how far along the limb (0 to 1) each vertex is."""
    axis = capsule.end - capsule.start
    length = float(np.linalg.norm(axis))
    direction = axis / length
    across, beside = _frame(direction)
    angles = 2 * np.pi * np.arange(capsule.sides) / capsule.sides
    circle = np.cos(angles)[:, None] * across + np.sin(angles)[:, None] * beside
    # Rings from pole to pole: two on each round end, the others along the limb between them.
    # Fingers end in points: they are a pixel wide.
    tilt = np.arange(1, 3 if capsule.sides > FINGER_SIDES else 1) * np.pi / 6
    ends = [(-np.cos(a) * capsule.radius, np.sin(a) * capsule.radius) for a in tilt]
    middle = [(t * length, capsule.radius) for t in np.linspace(0, 1, capsule.rings)]
    far_end = [(length - offset, radius) for offset, radius in reversed(ends)]
    rings = ends + middle + far_end
    vertices = [capsule.start - direction * capsule.radius]
    along = [0.0]
    for offset, radius in rings:
        vertices.extend(capsule.start + direction * offset + circle * radius)
        along.extend([min(max(offset / length, 0.0), 1.0)] * capsule.sides)
    vertices.append(capsule.end + direction * capsule.radius)
    along.append(1.0)
    faces = []
    count = capsule.sides
    last = len(vertices) - 1
    for side in range(count):
        after = (side + 1) % count
        faces.append((0, 1 + after, 1 + side))
        for ring in range(len(rings) - 1):
            a, b = 1 + ring * count + side, 1 + ring * count + after
            faces.append((a, b, b + count))
            faces.append((a, b + count, a + count))
        a, b = last - count + side, last - count + after
        faces.append((a, b, last))
    return np.array(vertices), np.array(faces), np.array(along)


def _part_of(joint: int, child: int | None) -> int:
    """1 to 24, as the joints of SMPL count: hands and fingers take the last two."""
    if joint in (20, 21) or joint >= 25:
        return 23 if joint == 20 or 25 <= joint < 40 else 24
    return (joint if child is None else min(child, 21)) + 1


def _skin(capsule: Capsule, along: Array) -> Array:
    """Weights (n, 55): a limb follows its joint, half the next ones near its ends."""
    weights = np.zeros((len(along), len(PARENTS)))
    to_child = np.clip((along - 0.75) / 0.25, 0, 1) * 0.5 if capsule.child is not None else 0.0
    grandparent = PARENTS[capsule.joint]
    to_parent = np.clip((0.25 - along) / 0.25, 0, 1) * 0.5 if grandparent >= 0 else 0.0
    if capsule.child is not None:
        weights[:, capsule.child] += to_child
    if grandparent >= 0:
        weights[:, grandparent] += to_parent
    weights[:, capsule.joint] += 1.0 - to_child - to_parent
    return weights


def regressor_of(vertices: Array, positions: Array) -> NDArray[np.float32]:
    """Least-norm weights (J, V) over the nearest vertices that give each place exactly."""
    regressor = np.zeros((len(positions), len(vertices)))
    for index, position in enumerate(positions):
        distance = np.linalg.norm(vertices - position, axis=1)
        near = np.argsort(distance, kind="stable")[:NEAREST]
        system = np.concatenate([vertices[near].T, np.ones((1, len(near)))])
        regressor[index, near] = np.linalg.lstsq(system, np.append(position, 1.0), rcond=None)[0]
    return regressor.astype(np.float32)


def _shape_directions(vertices: Array, centres: Array, along_legs: Array, arms: Array) -> Array:
    """Directions (V, 3, 10): size, legs, arms, girth, torso girth, five waves of girth."""
    outward = vertices - centres  # from the axis of the limb to its skin
    directions = np.zeros((*vertices.shape, 10))
    directions[..., 0] = 0.05 * vertices
    directions[:, 1, 1] = 0.06 * along_legs
    directions[:, 0, 2] = 0.06 * arms
    directions[..., 3] = 0.12 * outward
    torso = np.exp(-np.square((centres[:, 1] - 0.2) / 0.2)) * (np.abs(centres[:, 0]) < 0.12)
    directions[..., 4] = 0.12 * outward * torso[:, None]
    height = (centres[:, 1] + 0.95) / 1.7
    for wave in range(5):
        directions[..., 5 + wave] = 0.06 * outward * np.cos(np.pi * (wave + 1) * height)[:, None]
    return directions


# Human3.6M's 17 joints as means of joints of the body: pelvis, right leg, left leg, spine, neck,
# nose, head, left arm, right arm.
_JOINTS17 = (
    (0,), (2,), (5,), (8,), (1,), (4,), (7,), (6,), (12,), (15, 22), (15,),
    (16,), (18,), (20,), (17,), (19,), (21,),
)  # fmt: skip


@cache
def capsule_body() -> BodyFile:
    """The person of capsules as a body file."""
    vertices, faces, parts, weights, centres = [], [], [], [], []
    count = 0
    for capsule in capsules():
        capsule_vertices, own_faces, along = _capsule_mesh(capsule)
        vertices.append(capsule_vertices)
        faces.append(own_faces + count)
        parts.append(
            np.full(len(capsule_vertices), _part_of(capsule.joint, capsule.child), np.uint8)
        )
        weights.append(_skin(capsule, along))
        centres.append(capsule.start + along[:, None] * (capsule.end - capsule.start))
        count += len(capsule_vertices)
    position, centre = np.concatenate(vertices), np.concatenate(centres)
    joints = rest_joints()
    legs = np.clip(centre[:, 1] - joints[1, 1], None, 0.0)
    reach = np.sign(centre[:, 0]) * np.clip(np.abs(centre[:, 0]) - joints[16, 0], 0.0, None)
    reach = np.where(centre[:, 1] > 0.35, reach, 0.0)
    shape = _shape_directions(position, centre, legs, reach)
    regressor = regressor_of(position, joints)
    metric = np.stack([regressor[list(rows)].mean(0) for rows in _JOINTS17])
    return BodyFile(
        v_template=position.astype(np.float32),
        f=np.concatenate(faces),
        shapedirs=np.concatenate([shape, np.zeros_like(shape)], -1).astype(np.float32),
        posedirs=np.zeros((len(position), 3, 9 * (len(PARENTS) - 1)), np.float32),
        J_regressor=regressor,
        weights=np.concatenate(weights).astype(np.float32),
        parents=PARENTS,
        hands_mean=np.zeros((2, 15, 3), np.float32),
        part=np.concatenate(parts),
        joints17=metric.astype(np.float32),
        rendered_as="capsule",
    )


def write_capsule_body(path: Path) -> None:
    """The person of capsules as an .npz file with the arrays of SMPL-X's."""
    body = capsule_body()
    face = np.zeros(51, np.int64)
    parents = np.array(PARENTS, np.int64)
    parents[0] = 2**32 - 1
    content = {
        "v_template": body.v_template,
        "f": body.f.astype(np.uint32),
        "shapedirs": body.shapedirs,
        "posedirs": body.posedirs,
        "J_regressor": body.J_regressor,
        "weights": body.weights,
        "kintree_table": np.stack([parents, np.arange(len(PARENTS))]),
        "hands_componentsl": np.eye(45, dtype=np.float32),
        "hands_componentsr": np.eye(45, dtype=np.float32),
        "hands_meanl": np.zeros(45, np.float32),
        "hands_meanr": np.zeros(45, np.float32),
        "lmk_faces_idx": face,
        "lmk_bary_coords": np.full((51, 3), 1 / 3, np.float32),
        "dynamic_lmk_faces_idx": np.zeros((79, 17), np.int64),
        "dynamic_lmk_bary_coords": np.full((79, 17, 3), 1 / 3, np.float32),
        "part": body.part,
        "J_regressor_h36m": body.joints17,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **content)  # type: ignore[arg-type]
