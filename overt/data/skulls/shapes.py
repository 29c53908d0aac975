"""Synthetic skulls: braincase, face and ears, tilted and not quite symmetric, as a scan shows them.

Coordinates are those of the patient (x left, y back, z up) in mm around the center of the vault.
The numbers are approximate measures of adult skulls. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt.data.skulls.cranium import MIN_WALL, Braincase, Cranium, braincase
from overt.data.skulls.face import Face, Orbit, add_face, orbits
from overt.data.skulls.grids import (
    HEAD_MM,
    MIDDLE_MM,
    Field,
    Grid,
    Point,
    ellipsoid,
    node_grid,
    rotation,
    tube,
    voxel_grid,
)
from overt.geometry.voxels import Mask, largest_part

__all__ = ["HEAD_MM", "MIDDLE_MM", "Head", "build_skull", "make_skull"]

_FINE_MM = 1.2  # sutures and diploe are finer than larger voxels can show


@dataclass(frozen=True)
class Gap:
    """A hole in the vault from an earlier operation or injury."""

    direction: Point
    radius_mm: float
    stretch: float  # length by width


@dataclass(frozen=True)
class Head:
    """What a skull follows from, whatever its voxels."""

    cranium: Cranium
    face: Face
    tilt: tuple[float, float, float]  # degrees: nodding, to a shoulder, to a side
    asymmetry_mm: float
    roughness_mm: float  # noise of the segmentation
    lower_jaw: bool
    cut: float  # z below which the scan ends
    gaps: tuple[Gap, ...]
    seed: int  # of all noise

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Head:
        """Return a random head."""
        cranium = Cranium.sample(rng)
        return cls(
            cranium=cranium,
            face=Face.sample(rng, cranium),
            tilt=(rng.normal() * 4.0, rng.normal() * 1.5, rng.normal() * 2.0),
            asymmetry_mm=rng.uniform(0.2, 0.9),
            roughness_mm=rng.uniform(0.0, 0.3),
            lower_jaw=bool(rng.random() < 0.4),
            cut=rng.uniform(-98.0, -64.0),
            gaps=_sample_gaps(rng),
            seed=int(rng.integers(2**32)),
        )


def _sample_gaps(rng: np.random.Generator) -> tuple[Gap, ...]:
    """Return burr holes in one of eight skulls, and a larger gap in one of twelve."""
    gaps = []
    if rng.random() < 1 / 8:
        for _ in range(rng.integers(1, 4)):
            gaps.append(Gap(_upward(rng), rng.uniform(4.5, 7.5), 1.0))
    if rng.random() < 1 / 12:
        gaps.append(Gap(_upward(rng), rng.uniform(7, 14), rng.uniform(1, 2.5)))
    return tuple(gaps)


def _upward(rng: np.random.Generator) -> Point:
    x, y, z = rng.normal(size=3)
    x, y, z = np.array([x, y, abs(z) + 0.3]) / np.linalg.norm([x, y, abs(z) + 0.3])
    return float(x), float(y), float(z)


def make_skull(rng: np.random.Generator, side: int) -> Mask:
    """Return a random skull as a volume with `side` voxels along each side of 200 mm."""
    return build_skull(Head.sample(rng), side)


def build_skull(head: Head, side: int) -> Mask:
    """Return the skull of a head as a volume with `side` voxels along each side of 200 mm."""
    rng = np.random.default_rng(head.seed)
    turn = rotation(head.tilt)
    straight = node_grid(turn)
    shift = [head.asymmetry_mm * straight.noise(rng, 60.0) for _ in range(3)]
    nodes = node_grid(turn, shift)
    at = voxel_grid(nodes, side)
    case = braincase(head.cranium, nodes, at, rng, head.roughness_mm)
    bone = _case_bone(case, at)
    _add_parts(head, case, at, bone, rng)
    if at.voxel_mm < _FINE_MM:
        bone &= ~_sutures(rng, at, case.depth)
        bone &= ~_diploe(rng, at, case)
    for gap in head.gaps:
        bone &= ~_in_gap(gap, at)
    return largest_part(bone & (at.z > head.cut))


def _case_bone(case: Braincase, at: Grid) -> Mask:
    """Return the bone around the brain."""
    bone = (case.depth > 0) & (case.above > -case.plate)
    bone &= (case.depth < case.wall) | (case.above < 0)
    foramen = (at.x / 15) ** 2 + ((at.y - 24) / 18) ** 2 < 1
    return np.asarray(bone & ~(foramen & (at.z < -30) & (at.y < 45)))


def _add_parts(head: Head, case: Braincase, at: Grid, bone: Mask, rng: np.random.Generator) -> None:
    """Add face and ears, and cut the frontal sinus, each in the box of voxels it needs."""
    front = at.box((-100.0, -110.0, -110.0), (100.0, 10.0, 30.0))
    near = at.crop(front)
    orbit = orbits(head.face, near)
    bone[front] = add_face(head.face, near, bone[front], orbit, rng)
    if head.cranium.sinus is not None:
        case_front = Braincase(case.depth[front], case.wall[front], case.above[front], case.plate)
        bone[front] &= ~_sinus(head.cranium.sinus, case_front, near, orbit, rng)
    ears = at.box((-100.0, -50.0, -110.0), (100.0, 60.0, -15.0))
    bone[ears] |= _ear_bones(at.crop(ears), rng)
    if head.lower_jaw:
        bone[ears] |= _lower_jaw(at.crop(ears), rng)


def _sinus(
    sizes: tuple[float, float, float, float],
    case: Braincase,
    at: Grid,
    orbit: Orbit,
    rng: np.random.Generator,
) -> Mask:
    """Return the frontal sinus: air between the two tables, in lobes, with a septum."""
    _, wide, height, high = sizes
    table = max(rng.uniform(1.5, 3.0), MIN_WALL * at.voxel_mm)
    lobes = (at.x / wide) ** 2 + ((at.z - height) / high) ** 2 + 0.25 * at.noise(rng, 16.0)
    septum = np.abs(at.x - rng.uniform(-4, 4)) < max(0.8, 0.6 * at.voxel_mm)
    between = (case.depth > table) & (case.depth < case.wall - table)
    inside = (lobes < 0.8) & ~septum & (at.y < -40) & (case.above > -2.0)
    return np.asarray(between & inside & (orbit.outside > np.minimum(orbit.wall, 3.0) + 1.0))


def _ear_bones(at: Grid, rng: np.random.Generator) -> Mask:
    """Return petrous and mastoid parts of the temporal bones, with their air cells."""
    petrous: list[Point] = [(14.0, -4.0, -46.0), (36.0, 6.0, -45.0), (58.0, 12.0, -45.0)]
    bone = tube(at, petrous, (1.0, 1.1, 1.0)) < rng.uniform(6.0, 8.5)
    low = rng.uniform(12, 19)
    mastoid = ellipsoid(at, (rng.uniform(48, 53), 20.0, -54.0), (9.5, 14.0, low))
    bone |= mastoid < 0
    cells = at.noise(rng, 7.0) > rng.uniform(0.4, 1.6)
    bone &= ~(cells & (at.aside > 20) & (mastoid < -2))
    canal: list[Point] = [(40.0, 4.0, -44.0), (80.0, 3.0, -44.0)]
    return np.asarray(bone & (tube(at, canal) > rng.uniform(2.5, 4.0)))


def _lower_jaw(at: Grid, rng: np.random.Generator) -> Mask:
    """Return the rami of the lower jaw, which touch the base in many scans."""
    aside = 50 + 0.08 * (at.z + 50) + rng.uniform(-2, 2)
    front, back = -38 - 0.12 * (at.z + 50), -4 - 0.2 * (at.z + 50)
    ahead = (at.y - back) / (front - back)  # 0 at the condyle, 1 at the coronoid process
    top = -50 - 14 * np.sin(np.pi * np.clip(ahead, 0, 1))
    thick = max(rng.uniform(1.6, 2.6), 0.9 * at.voxel_mm)
    plate = (np.abs(at.aside - aside) < thick) & (ahead > 0) & (ahead < 1) & (at.z < top)
    condyle: list[Point] = [(48.0, -6.0, -46.0), (48.0, -8.0, -58.0)]
    return np.asarray(plate | (tube(at, condyle, (0.7, 1.0, 1.0)) < 4.0))


def _in_gap(gap: Gap, at: Grid) -> Mask:
    """Return the voxels of a hole through the vault toward its center."""
    x, y, z = gap.direction
    ahead = at.x * x + at.y * y + at.z * z
    # The longer axis is horizontal.
    across = (at.x * y - at.y * x) / max(float(np.hypot(x, y)), 1e-3) / gap.stretch
    square = at.x**2 + at.y**2 + at.z**2 - ahead**2
    upward = np.maximum(square - (across * gap.stretch) ** 2, 0)
    return np.asarray((across**2 + upward < gap.radius_mm**2) & (ahead > 35))


def _sutures(rng: np.random.Generator, at: Grid, depth: Field) -> Mask:
    """Return grooves along the coronal, sagittal and lambdoid sutures."""
    zigzag = 1.5 * np.sin(at.x / 3 + at.z / 5) + 1.2 * np.sin(at.y / 2.3)
    coronal = np.abs(at.y + rng.uniform(8, 22) + 0.25 * at.aside + zigzag) < 0.8
    behind = rng.uniform(48, 60)
    lambdoid = np.abs(at.y - behind + 0.45 * at.aside + zigzag) < 0.8
    sagittal = (np.abs(at.x + zigzag) < 0.8) & (at.y > -15) & (at.y < behind)
    lines = (coronal | lambdoid | sagittal) & (at.z > -10)
    return np.asarray(lines & (depth < 1.5))


def _diploe(rng: np.random.Generator, at: Grid, case: Braincase) -> Mask:
    """Return the cells between the two tables of thick bone."""
    cells = np.sin(at.x * 1.1) + np.sin(at.y * 1.3 + at.z * 0.4) + np.sin(at.z * 1.2 - at.x * 0.3)
    between = (case.depth > 0.36 * case.wall) & (case.depth < 0.66 * case.wall)
    return np.asarray(between & (case.wall > 5.0) & (cells > rng.uniform(1.2, 2.2)))
