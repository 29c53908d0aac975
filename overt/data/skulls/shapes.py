"""Synthetic skulls: a vault of varying thickness, a base with fossae, orbits, face bones, sutures.

Coordinates are those of the patient (x left, y back, z up) in mm around the center of the vault.
The numbers are approximate measures of adult skulls. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overt.geometry.voxels import Mask

HEAD_MM = 200.0  # the length of the volume, whatever its voxels
MIDDLE_MM = (0.0, 2.0, 10.0)  # of the vault in the volume, from the volume's center
_MIN_WALL = 2.5  # voxels: a thinner wall would have holes

Field = NDArray[np.float32]  # (x, y, z)


@dataclass(frozen=True)
class Position:
    """Coordinates of every voxel: mm along each axis, distance from the center, and direction."""

    x: Field
    y: Field
    z: Field
    distance: Field
    direction: Field  # (3, x, y, z)
    voxel_mm: float


def positions(side: int) -> Position:
    """Return the coordinates of the voxels of a volume."""
    voxel = HEAD_MM / side
    axis = ((np.arange(side) + 0.5) * voxel - HEAD_MM / 2).astype(np.float32)
    x, y, z = np.meshgrid(*(axis - np.float32(middle) for middle in MIDDLE_MM), indexing="ij")
    distance = np.sqrt(x * x + y * y + z * z)
    direction = np.stack([x, y, z]) / np.maximum(distance, 1e-3)
    return Position(x, y, z, distance, direction, voxel)


def make_skull(rng: np.random.Generator, side: int) -> Mask:
    """Return a random skull as a volume with `side` voxels along each side of 200 mm."""
    at = positions(side)
    radius, wall = _vault(rng, at)
    depth = radius - at.distance  # mm below the outer surface
    floor, front = _floor(rng, at)
    plate = max(rng.uniform(4.0, 6.0), _MIN_WALL * at.voxel_mm)
    bone = (depth > 0) & (depth < wall) & (at.z > floor - rng.uniform(6.0, 14.0))
    bone |= (depth > 0) & (np.abs(at.z - floor) < plate / 2)
    foramen = (at.x / 16) ** 2 + ((at.y - 22) / 19) ** 2 < 1
    bone &= ~(foramen & (at.z < -20) & (depth > wall))
    bone = _add_face(rng, at, bone, front, radius)
    if at.voxel_mm < 1.2:  # finer than most scanners see is left out
        bone &= ~_sutures(rng, at, depth)
        bone &= ~_diploe(rng, at, depth, wall)
    return bone & (at.z > rng.uniform(-98.0, -70.0))


def _waves(rng: np.random.Generator, at: Position, count: int, low: float, high: float) -> Field:
    """Return smooth noise over directions, between about -1 and 1."""
    total = np.zeros_like(at.distance)
    for _ in range(count):
        wave = rng.normal(size=3)
        wave *= rng.uniform(low, high) / np.linalg.norm(wave)
        phase = np.tensordot(wave.astype(np.float32), at.direction, axes=1)
        total += np.sin(phase + np.float32(rng.uniform(0, 2 * np.pi)))
    return total / np.float32(np.sqrt(count))


def _vault(rng: np.random.Generator, at: Position) -> tuple[Field, Field]:
    """Return the radius of the outer surface and the thickness of the wall, by direction."""
    x, y, z = at.direction
    width, height = rng.uniform(66, 78), rng.uniform(70, 84)
    forehead, occiput = rng.uniform(82, 94), rng.uniform(84, 98)
    length = np.where(y < 0, forehead, occiput)
    # Heads are widest behind the ears, and rounder than an ellipsoid.
    across = width * (1 + rng.uniform(0.0, 0.10) * y)
    power = rng.uniform(2.0, 2.5)
    radius = (
        np.abs(x / across) ** power + np.abs(y / length) ** power + np.abs(z / height) ** power
    ) ** (-1 / power)
    radius = radius * (1 + 0.012 * _waves(rng, at, 5, 2.0, 5.0))
    wall = rng.uniform(4.5, 7.5) * (1 + 0.14 * _waves(rng, at, 4, 3.0, 7.0))
    temple = np.exp(-(((np.abs(x) - 0.95) / 0.2) ** 2)) * (z < 0.35)
    wall = wall * (1 - rng.uniform(0.2, 0.45) * temple) + rng.uniform(0, 2.5) * np.maximum(y, 0)
    minimum = max(2.5, _MIN_WALL * at.voxel_mm)
    return radius.astype(np.float32), np.maximum(wall, minimum).astype(np.float32)


def _floor(rng: np.random.Generator, at: Position) -> tuple[Field, float]:
    """Return the height of the base below the brain, in three steps, and that of its front."""
    front, middle, back = rng.uniform(-24, -16), rng.uniform(-48, -38), rng.uniform(-62, -50)
    first, second = rng.uniform(-36, -26), rng.uniform(-2, 8)
    step = 1 / (1 + np.exp(-(at.y - first) / 4))
    low = 1 / (1 + np.exp(-(at.y - second) / 5))
    return (front + (middle - front) * step + (back - middle) * low).astype(np.float32), front


def _shell(at: Position, center: tuple[float, float, float], radii: tuple[float, ...]) -> Field:
    """Return the approximate distance in mm of a voxel outside an ellipsoid."""
    scaled = [(p - c) / r for p, c, r in zip((at.x, at.y, at.z), center, radii, strict=True)]
    norm = np.sqrt(sum((part**2 for part in scaled), np.zeros_like(at.x)))
    return np.asarray((norm - 1) * np.float32(min(radii)), dtype=np.float32)


def _tube(at: Position, first: NDArray[np.float64], last: NDArray[np.float64]) -> Field:
    """Return the distance in mm to a line between two points."""
    along = last - first
    offset = [p - np.float32(f) for p, f in zip((at.x, at.y, at.z), first, strict=True)]
    ahead = sum(o * np.float32(a) for o, a in zip(offset, along, strict=True)) / (along @ along)
    ahead = np.clip(ahead, 0, 1)
    squares = [(o - ahead * np.float32(a)) ** 2 for o, a in zip(offset, along, strict=True)]
    return np.asarray(np.sqrt(squares[0] + squares[1] + squares[2]), dtype=np.float32)


def _add_face(
    rng: np.random.Generator, at: Position, bone: Mask, front: float, radius: Field
) -> Mask:
    """Add orbits, upper jaw, cheekbones and ear bones, and cut the openings."""
    thin = max(3.0, 1.6 * at.voxel_mm)
    brow = -float(radius[len(radius) // 2, 0, round(len(radius) * 0.55)])  # y of the forehead
    apart, deep = rng.uniform(29, 34), rng.uniform(22, 28)
    wide, high = rng.uniform(17, 21), rng.uniform(15, 18)
    jaw = _shell(at, (0.0, brow + 26, front - 40), (31.0, 27.0, 24.0))
    bone = bone | ((jaw > -thin) & (jaw < 0))
    openings = np.zeros_like(bone)
    for sign in (-1.0, 1.0):
        orbit = _shell(at, (sign * apart, brow + 20, front - high - 2), (wide, deep, high))
        bone |= (orbit > 0) & (orbit < thin) & (at.y > brow + 2)
        openings |= orbit < 0
        cheek = np.array([sign * 50, brow + 18, front - 30]), np.array([sign * 66, -12, front - 26])
        bone |= _tube(at, *cheek) < max(rng.uniform(3.5, 5.5), 1.3 * at.voxel_mm)
        ear = np.array([sign * 22, 4, -44]), np.array([sign * 58, 16, -46])
        bone |= _tube(at, *ear) < rng.uniform(7, 10)
        mastoid = _shell(at, (sign * 54, 22, -56), (11.0, 14.0, rng.uniform(14, 20)))
        bone |= (mastoid < 0) & (mastoid > -4)
    nose = (np.abs(at.x) < 10) & (at.y < brow + 40) & (at.z < front - 6) & (at.z > front - 42)
    return np.asarray(bone & ~openings & ~nose)


def _sutures(rng: np.random.Generator, at: Position, depth: Field) -> Mask:
    """Return grooves along the coronal, sagittal and lambdoid sutures."""
    zigzag = 1.5 * np.sin(at.x / 3 + at.z / 5) + 1.2 * np.sin(at.y / 2.3)
    coronal = np.abs(at.y + rng.uniform(8, 22) + 0.25 * np.abs(at.x) + zigzag) < 0.8
    behind = rng.uniform(48, 60)
    lambdoid = np.abs(at.y - behind + 0.45 * np.abs(at.x) + zigzag) < 0.8
    sagittal = (np.abs(at.x + zigzag) < 0.8) & (at.y > -15) & (at.y < behind)
    lines = (coronal | lambdoid | sagittal) & (at.z > -10)
    return np.asarray(lines & (depth < 1.5))


def _diploe(rng: np.random.Generator, at: Position, depth: Field, wall: Field) -> Mask:
    """Return the cells between the two tables of thick bone."""
    cells = np.sin(at.x * 1.1) + np.sin(at.y * 1.3 + at.z * 0.4) + np.sin(at.z * 1.2 - at.x * 0.3)
    between = (depth > 0.36 * wall) & (depth < 0.66 * wall) & (wall > 5.0)
    return np.asarray(between & (cells > rng.uniform(1.2, 2.2)))
