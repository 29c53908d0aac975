"""A body from shape and pose: linear blend skinning over the files' own layout (SMPL, SMPL-X).

Letters: B bodies, V vertices, J joints, S shape numbers. Section 3 of arXiv:1904.05866.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from overt.errors import DataError
from overt.geometry.rotation import axis_angle_to_matrix, compose, rotate

BODY_JOINTS = 22  # pelvis and the 21 of `body_pose`
HAND_JOINTS = 15
SHAPE_NUMBERS = 10  # that PoseNet predicts; labels may have more
SMPL_JOINTS = 24
SMPLX_JOINTS = 55
HEAD_PART, LEFT_HAND_PART, RIGHT_HAND_PART = 16, 23, 24
# Where the expression begins among the directions of a file: after 300 shape numbers in the files
# of 2020 and later, after 10 in the first release.
LONG_SHAPE_SPACE = 300


class Body(NamedTuple):
    """Posed bodies."""

    vertices: Tensor  # (B, V, 3) meters
    joints: Tensor  # (B, J, 3) meters


def blend_skin(
    shaped: Tensor,  # (B, V, 3) vertices after shape, before pose
    rest_joints: Tensor,  # (B, J, 3)
    rotations: Tensor,  # (B, J, 3, 3), each relative to its parent
    pose_directions: Tensor | None,  # (9 (J - 1), 3 V)
    parents: tuple[int, ...],
    weights: Tensor,  # (V, J)
) -> Body:
    """Vertices and joints of shaped bodies in a pose."""
    if pose_directions is not None:
        eye = torch.eye(3, dtype=rotations.dtype, device=rotations.device)
        features = (rotations[:, 1:] - eye).flatten(1)  # (B, 9 (J - 1))
        shaped = shaped + (features @ pose_directions).view_as(shaped)
    world, joints = chain(rotations, rest_joints, parents)
    # What takes a vertex at rest to its place: turn about the resting joint, move to the posed one.
    moves = joints - rotate(world, rest_joints)  # (B, J, 3)
    maps = torch.cat([world, moves[..., None]], dim=-1).flatten(2)  # (B, J, 12)
    blended = torch.unflatten(weights @ maps, -1, (3, 4))  # (B, V, 3, 4)
    vertices = rotate(blended[..., :3], shaped) + blended[..., 3]
    return Body(vertices, joints)


def chain(
    rotations: Tensor, rest_joints: Tensor, parents: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """World rotations (B, J, 3, 3) and places (B, J, 3) along the tree of joints.

    Joints of the same generation are computed together: a body of 55 joints has eleven, so that a
    GPU gets a fifth of the launches.
    """
    levels = generations(parents)
    turns, positions = [rotations[:, :1]], [rest_joints[:, :1]]
    offset_of = {0: 0}  # where a joint is within its generation
    for before, joints in pairwise(levels):
        above = [offset_of[parents[joint]] for joint in joints]
        offset_of = {joint: index for index, joint in enumerate(joints)}
        is_unchanged = above == list(range(len(before)))
        turned = turns[-1] if is_unchanged else _columns(turns[-1], above)  # (B, j, 3, 3)
        start = positions[-1] if is_unchanged else _columns(positions[-1], above)
        offset = _columns(rest_joints, joints) - _columns(rest_joints, [parents[j] for j in joints])
        positions.append(start + rotate(turned, offset))
        turns.append(compose(turned, _columns(rotations, joints)))
    order = [joint for joints in levels for joint in joints]
    back = sorted(range(len(order)), key=order.__getitem__)
    return _columns(torch.cat(turns, dim=1), back), _columns(torch.cat(positions, dim=1), back)


@cache
def generations(parents: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Joints by their distance from the root, which is joint 0."""
    depth = [0] * len(parents)
    for joint, parent in enumerate(parents[1:], start=1):
        depth[joint] = depth[parent] + 1
    return tuple(
        tuple(joint for joint in range(len(parents)) if depth[joint] == level)
        for level in range(max(depth) + 1)
    )


_INDICES: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def _index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Return numbers on a device, sent there once: a copy from the host would wait for it."""
    cached = _INDICES.get((numbers, device))
    if cached is not None:
        return cached
    with torch.inference_mode(False):
        index = torch.tensor(numbers, device=device)
    if type(index) is Tensor:  # the fake tensors of a plan belong to that plan alone
        _INDICES[numbers, device] = index
    return index


def _columns(values: Tensor, numbers: Sequence[int]) -> Tensor:
    """Some of the second dimension."""
    first = numbers[0]
    if list(numbers) == list(range(first, first + len(numbers))):
        return values[:, first : first + len(numbers)]
    return values.index_select(1, _index(tuple(numbers), values.device))


@dataclass(frozen=True)
class BodyFile:
    """The contents of a body model file, in numpy, named as in the file."""

    v_template: NDArray[np.float32]  # (V, 3)
    f: NDArray[np.int64]  # (F, 3)
    shapedirs: NDArray[np.float32]  # (V, 3, S): shape, then expression where there is one
    posedirs: NDArray[np.float32]  # (V, 3, 9 (J - 1))
    J_regressor: NDArray[np.float32]  # (J, V)
    weights: NDArray[np.float32]  # (V, J)
    parents: tuple[int, ...]  # that of the root is -1
    hands_mean: NDArray[np.float32] | None = None  # (2, 15, 3), SMPL-X only
    part: NDArray[np.uint8] | None = None  # (V,), 1 to 24
    joints17: NDArray[np.float32] | None = None  # (17, V): the regressor of the metrics
    rendered_as: str | None = None  # what rendered people of this body are marked with

    @property
    def shape_directions(self) -> NDArray[np.float32]:  # (V, 3, S)
        """The directions of the shape, without those of the expression."""
        is_long = self.shapedirs.shape[-1] >= LONG_SHAPE_SPACE
        return self.shapedirs[..., : LONG_SHAPE_SPACE if is_long else SHAPE_NUMBERS]

    @property
    def joint_count(self) -> int:
        return len(self.parents)


class BodyModel(nn.Module):
    """Bodies of one file; nothing is trained, and nothing of it goes into a checkpoint."""

    template: Tensor
    directions: Tensor
    pose_directions: Tensor | None
    regressor: Tensor
    skin_weights: Tensor
    faces: Tensor
    rest_places: Tensor
    rest_directions: Tensor
    hands_mean: Tensor
    part: Tensor
    joints17: Tensor | None

    def __init__(self, file: BodyFile) -> None:
        super().__init__()
        self.parents = file.parents
        count = len(file.v_template)
        directions = file.shape_directions
        has_pose = bool(np.any(file.posedirs))

        def keep(name: str, array: NDArray[np.generic] | None) -> None:
            value = None if array is None else torch.from_numpy(np.ascontiguousarray(array))
            self.register_buffer(name, value, persistent=False)

        keep("template", file.v_template)
        keep("directions", directions.reshape(count * 3, -1).T)  # (S, 3 V)
        flat = file.posedirs.reshape(count * 3, -1).T
        keep("pose_directions", flat if has_pose else None)  # (9 (J - 1), 3 V)
        keep("skin_weights", file.weights)
        keep("faces", file.f)
        # Joints at rest are linear in the shape: no need to make all vertices first.
        keep("rest_places", file.J_regressor @ file.v_template)
        rest = np.einsum("jv,vcs->sjc", file.J_regressor, directions)
        keep("rest_directions", rest.reshape(len(rest), -1).astype(np.float32))
        hands = np.zeros((2, HAND_JOINTS, 3), np.float32)
        keep("hands_mean", hands if file.hands_mean is None else file.hands_mean)
        keep("part", parts_by_joint(file) if file.part is None else file.part)
        keep("joints17", file.joints17)

    @property
    def shape_numbers(self) -> int:
        return len(self.directions)

    def forward(self, shape: Tensor, rotations: Tensor) -> Body:
        """Bodies (B, S'), (B, J', 3, 3); joints that are not given rest, hands at their mean."""
        rotations = self.complete(rotations)
        used = self.directions[: shape.shape[1]]
        shaped = self.template + (shape @ used).view(len(shape), -1, 3)
        moved = shape @ self.rest_directions[: shape.shape[1]]
        rest_joints = self.rest_places + moved.view(len(shape), -1, 3)
        return blend_skin(
            shaped, rest_joints, rotations, self.pose_directions, self.parents, self.skin_weights
        )

    def joints(self, shape: Tensor, rotations: Tensor) -> Tensor:
        """The joints (B, J, 3) alone, without any vertex."""
        moved = shape @ self.rest_directions[: shape.shape[1]]
        rest_joints = self.rest_places + moved.view(len(shape), -1, 3)
        return chain(self.complete(rotations), rest_joints, self.parents)[1]

    def complete(self, rotations: Tensor) -> Tensor:
        """Rotations of all joints, where only the first ones are given."""
        missing = len(self.parents) - rotations.shape[1]
        if missing == 0:
            return rotations
        identity = torch.eye(3, dtype=rotations.dtype, device=rotations.device)
        identity = identity.expand(len(rotations), missing, 3, 3)
        if missing >= 2 * HAND_JOINTS:
            hands = axis_angle_to_matrix(self.hands_mean.flatten(0, 1).to(rotations.dtype))
            hands = hands.expand(len(rotations), -1, 3, 3)
            identity = torch.cat([identity[:, : missing - 2 * HAND_JOINTS], hands], dim=1)
        return torch.cat([rotations, identity], dim=1)

    def joints_of_metrics(self, vertices: Tensor) -> Tensor:
        """The 17 joints (B, 17, 3) that the metrics compare."""
        if self.joints17 is None:
            raise DataError(
                "this body model has no regressor of the 17 Human3.6M joints; set "
                "model.body.joint_regressor to J_regressor_h36m.npy"
            )
        return self.joints17 @ vertices


def parts_by_joint(file: BodyFile) -> NDArray[np.uint8]:
    """Parts 1 to 24 of the vertices by the joint that moves them most, as SMPL counts its joints.

    Jaw and eyes belong to the head, fingers to the hands.
    """
    joints = file.weights.argmax(1)
    if file.joint_count == SMPL_JOINTS:
        return np.asarray(joints + 1, dtype=np.uint8)
    parts = np.arange(1, file.joint_count + 1)
    parts[BODY_JOINTS:] = HEAD_PART
    parts[-2 * HAND_JOINTS : -HAND_JOINTS], parts[-HAND_JOINTS:] = LEFT_HAND_PART, RIGHT_HAND_PART
    return np.asarray(parts[joints], dtype=np.uint8)
