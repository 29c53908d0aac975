"""Objects of several layers: boxes that rotate in space, and limbs that rotate about joints.

Each replaces the motion and outline of three neighboring layers in some clips. Faces and limbs are
flat, so a homography maps each to the image, as it does any other layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from overt.data.tracking.procedural_draws import Draws
from overt.data.tracking.procedural_settings import ARTICULATED_LAYERS, SOLID_LAYERS

# Faces of a box that the rotations below turn toward the camera: axis, its sign, and the two axes
# of the surface.
FACES = ((0, 1.0, 1, 2), (1, -1.0, 0, 2), (2, -1.0, 0, 1))
YAW, PITCH = (0.79, 0.5), (0.65, 0.35)  # middle and largest deviation, radians
BENT = 1.25  # largest angle of a joint at rest, radians
JOINT = 0.8  # standard deviation of its motion


class Motion(NamedTuple):
    """The motion of a layer, (B, T) each: its center, rotation and log zoom."""

    x: Tensor
    y: Tensor
    roll: Tensor
    growth: Tensor


class Part(NamedTuple):
    """A face or a limb."""

    forward: list[Tensor]  # nine of (B, T): surface to image, row by row
    half: tuple[Tensor, Tensor]  # (B,) half its sides
    is_seen: Tensor  # (B, T) bool


class Parts(NamedTuple):
    """What layers are if they are parts of an object."""

    forward: list[Tensor]  # nine of (B, L, T)
    belongs: Tensor  # (B, L) bool
    half: tuple[Tensor, Tensor]  # (B, L)
    is_seen: Tensor  # (B, L, T) bool


def join_layers(
    draws: Draws,
    smooth: Callable[..., Tensor],
    chances: tuple[float, float],  # of a box and of limbs in a clip
    things_move: Tensor,  # (B, 1)
    motions: Motion,  # (B, L, T) each
    forward: list[Tensor],  # nine of (B, L, T)
) -> Parts:
    """Replace the motion of some layers by that of boxes and limbs."""
    forward = [row.clone() for row in forward]
    is_seen = torch.ones_like(forward[0], dtype=torch.bool)
    belongs = torch.zeros_like(is_seen[..., 0])
    half = (torch.ones_like(forward[0][..., 0]), torch.ones_like(forward[0][..., 0]))
    makers = ((SOLID_LAYERS, _faces), (ARTICULATED_LAYERS, _limbs))
    for chance, (layers, make) in zip(chances, makers, strict=True):
        if chance == 0:
            continue
        chosen = draws.chance(chance, 1) > 0  # (B, 1)
        motion = Motion(*(value[:, layers[0]] for value in motions))
        for layer, part in zip(layers, make(draws, smooth, things_move, motion), strict=True):
            for row, own in zip(forward, part.forward, strict=True):
                row[:, layer] = torch.where(chosen, own, row[:, layer])
            belongs[:, layer] = chosen[:, 0]
            for side, own in zip(half, part.half, strict=True):
                side[:, layer] = own
            is_seen[:, layer] = part.is_seen | ~chosen
    return Parts(forward, belongs, half, is_seen)


def _faces(
    draws: Draws, smooth: Callable[..., Tensor], things_move: Tensor, motion: Motion
) -> list[Part]:
    """Return three faces of a box that rotates in front of a camera with perspective."""
    extent = draws.uniform(3, low=0.12, high=0.4)  # (B, 3) half the sides
    angles = draws.normal(2, 1) + smooth(2) * things_move[..., None]  # (B, 2, T)
    near = draws.uniform(1, low=0.1, high=0.6)  # (B, 1) one over the camera's distance
    yaw, pitch = (
        middle + most * torch.tanh(angles[:, number])
        for number, (middle, most) in enumerate((YAW, PITCH))
    )
    scale = motion.growth.exp()
    directions = _rotation(yaw, pitch, motion.roll)  # (3, 3, B, T): axis, coordinate
    axes = directions * scale
    parts = []
    for axis, sign, along, across in FACES:
        center = sign * extent[:, axis, None] * axes[axis]  # (3, B, T)
        depth = 1 + near * center[2]  # of the face's center; 1 is the middle of the box
        rows: list[list[Tensor]] = [[], [], []]
        for position, offset in ((axes[along], 0.0), (axes[across], 0.0), (center, 1.0)):
            weight = (offset + near * position[2]) / depth
            rows[0].append(position[0] / depth + motion.x * weight)
            rows[1].append(position[1] / depth + motion.y * weight)
            rows[2].append(weight)
        # The face is seen from the camera at depth -1 / near if it lies on its outer side.
        is_seen = -sign * directions[axis, 2] > near * extent[:, axis, None] * scale
        sides = (extent[:, along], extent[:, across])
        parts.append(Part([*rows[0], *rows[1], *rows[2]], sides, is_seen))
    return parts


def _rotation(yaw: Tensor, pitch: Tensor, roll: Tensor) -> Tensor:
    """Return where the three axes of a box point, (3, 3, B, T): axis, then x, y and depth."""
    zero = torch.zeros_like(yaw)
    axes = torch.stack(
        [
            torch.stack([yaw.cos(), zero, -yaw.sin()]),
            torch.stack([zero, zero + 1, zero]),
            torch.stack([yaw.sin(), zero, yaw.cos()]),
        ]
    )
    x, y, depth = axes.unbind(1)
    y, depth = y * pitch.cos() - depth * pitch.sin(), y * pitch.sin() + depth * pitch.cos()
    x, y = x * roll.cos() - y * roll.sin(), x * roll.sin() + y * roll.cos()
    return torch.stack([x, y, depth], 1)


def _limbs(
    draws: Draws, smooth: Callable[..., Tensor], things_move: Tensor, motion: Motion
) -> list[Part]:
    """Return a chain of three bars; each rotates about the end of the one before."""
    count = len(ARTICULATED_LAYERS)
    length = draws.uniform(count, low=0.1, high=0.28)  # (B, 3) half of it
    width = draws.uniform(count, low=0.03, high=0.09)
    first = draws.uniform(1, low=-math.pi, high=math.pi)
    rest = torch.cat([first, draws.uniform(count - 1, low=-BENT, high=BENT)], 1)
    bends = smooth(count) * things_move[..., None] * JOINT  # (B, 3, T)
    scale, angle = motion.growth.exp(), motion.roll
    x, y = motion.x, motion.y  # of the joint
    parts = []
    for number in range(count):
        angle = angle + rest[:, number, None] + bends[:, number]
        cos, sin = scale * angle.cos(), scale * angle.sin()
        half = length[:, number, None]
        zero = torch.zeros_like(cos)
        parts.append(
            Part(
                [cos, -sin, x + half * cos, sin, cos, y + half * sin, zero, zero, zero + 1],
                (length[:, number], width[:, number]),
                torch.ones_like(cos, dtype=torch.bool),
            )
        )
        x, y = x + 2 * half * cos, y + 2 * half * sin
    return parts
