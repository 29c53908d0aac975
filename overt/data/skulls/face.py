"""The face of synthetic skulls: orbits, nose, cheekbones and upper jaw.

Everything is placed relative to the forehead of the braincase. Bone that is thin in the orbits and
the nose has gaps, as in skulls segmented at a threshold. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt.data.skulls.cranium import THIN_MM, Cranium
from overt.data.skulls.grids import Field, Grid, Point, ellipsoid, tube
from overt.geometry.voxels import Mask

_THICKEST_NOSE_MM = 16.0  # half of the distance between the orbits, at most


@dataclass(frozen=True)
class Face:
    """Sizes in mm of one half; positions are from the center of the vault."""

    center: Point  # of the orbit's opening: aside, y, z
    apex: Point  # of the orbit
    half_width: float
    half_height: float
    bulge: float  # how much wider than its opening the orbit is
    power: float  # 2: round orbits; more: square ones
    rim_y: tuple[float, float]  # at the nose and at the temple
    rim: float  # thickness of the orbital rim
    lower_rim: float  # how far the lower rim is behind the upper one
    roof: float  # thicknesses of the walls of the orbit
    floor: float
    medial: float
    lateral: float
    wing: float  # greater wing of the sphenoid bone, where orbit and temporal fossa meet
    gaps: float  # in thin bone: 0 for none
    nasion: Point
    nose: Point  # lower end of the nasal bones
    nose_slope: float  # of the sides of the nose
    nose_width: float  # half of the opening
    palate: float  # z
    jaw: Point  # center of the maxillary sinus
    jaw_radii: Point
    pillar: float  # radius of the bone between orbit and temple
    arch: float  # how far the zygomatic arch is aside
    arch_radius: float
    teeth: float  # depth of the alveolar process below the palate

    @classmethod
    def sample(cls, rng: np.random.Generator, cranium: Cranium) -> Face:
        """Return a random face that fits to a braincase."""
        medial, lateral = rng.uniform(9.5, 14.0), rng.uniform(45.5, 52.0)
        aside, half_width = (lateral + medial) / 2, (lateral - medial) / 2
        half_height = half_width * rng.uniform(0.8, 1.0)
        # The roof of the orbit is convex toward the brain.
        height = cranium.anterior + rng.uniform(0.0, 6.0) - half_height
        brow = cranium.front(aside, height + half_height)
        glabella = cranium.front(0.0, height + half_height)
        rim_y = min(brow, glabella + 8) - rng.uniform(-1.0, 3.0)
        # As deep as adult orbits, also in a short head.
        apex_y = max(cranium.ridge + rng.uniform(-3, 2), rim_y + rng.uniform(34, 40))
        temple = rim_y + rng.uniform(10.0, 18.0)
        nasion: Point = (0.0, glabella + rng.uniform(0, 4), height + rng.uniform(4, 11))
        length = rng.uniform(16, 27)
        nose_width = rng.uniform(10, 14)
        jaw_width = rng.uniform(13, 17)
        nose_y = max(nasion[1] - length * rng.uniform(0.2, 0.65), -96.0)
        palate = height - half_height - rng.uniform(20, 30)
        jaw_y = rim_y + rng.uniform(18, 24)
        jaw_high = (height - half_height - palate) / 2 + rng.uniform(1, 3)
        return cls(
            center=(aside, rim_y + 4, height),
            apex=(rng.uniform(14, 20), apex_y, height + rng.uniform(-3, 4)),
            half_width=half_width,
            half_height=half_height,
            bulge=rng.uniform(0.05, 0.4),
            power=rng.uniform(2.1, 3.4),
            rim_y=(rim_y - 1, temple),
            rim=rng.uniform(2.0, 4.5),
            lower_rim=rng.uniform(1.0, 6.0),
            roof=rng.uniform(1.0, 2.8),
            floor=rng.uniform(0.9, 2.4),
            medial=rng.uniform(0.6, 1.8),
            lateral=rng.uniform(2.0, 4.0),
            wing=rng.uniform(4.0, 10.0),
            gaps=rng.uniform(0.1, 0.9),
            nasion=nasion,
            nose=(0.0, nose_y, nasion[2] - length),
            nose_slope=rng.uniform(0.7, 1.3),
            nose_width=nose_width,
            palate=palate,
            jaw=(nose_width + jaw_width + 1, jaw_y, palate + jaw_high),
            jaw_radii=(jaw_width, rng.uniform(16, 20), jaw_high),
            pillar=rng.uniform(2.8, 4.2),
            arch=rng.uniform(61, 69),
            arch_radius=rng.uniform(2.6, 4.0),
            teeth=rng.uniform(8, 18),
        )


@dataclass(frozen=True)
class Orbit:
    """Fields of the orbits of both sides."""

    outside: Field  # mm outside the cavity, negative in it
    along: Field  # 0 at the opening, 1 at the apex
    behind: Field  # mm behind the rim
    wall: Field  # thickness of the bone around it


def orbits(face: Face, at: Grid) -> Orbit:
    """Return a pyramid with rounded edges whose lateral wall points back and to the midline."""
    aside = at.aside
    along = (at.y - np.float32(face.center[1])) / np.float32(face.apex[1] - face.center[1])
    within = np.clip(along, 0, 1)
    across = aside - np.float32(face.center[0]) - within * (face.apex[0] - face.center[0])
    up = at.z - np.float32(face.center[2]) - within * np.float32(face.apex[2] - face.center[2])
    # Widest a little behind the opening.
    narrow = 1 + within * np.float32(face.bulge) - (face.bulge + 0.83) * within ** np.float32(1.5)
    half_width, half_height = face.half_width * narrow, face.half_height * narrow
    across, up = across / half_width, up / half_height
    norm = (np.abs(across) ** face.power + np.abs(up) ** face.power) ** (1 / face.power)
    outside = (norm - 1) * np.minimum(half_width, half_height)
    square = across * across + up * up + np.float32(1e-6)
    is_up, is_lateral = up > 0, across > 0
    vertical = up * up / square
    # Thin in the middle, thick at the rim and where the greater wing meets the temporal bone.
    wing = face.lateral + (face.wing - face.lateral) * np.exp(-(((within - 0.72) / 0.18) ** 2))
    wall = vertical * np.where(is_up, face.roof, face.floor)
    wall += (1 - vertical) * np.where(is_lateral, wing, face.medial)
    at_nose, at_temple = face.rim_y
    outward = np.clip((aside - 12) / 38, 0, 1.4)
    rim_y = at_nose + (at_temple - at_nose) * outward**1.7
    rim_y += face.lower_rim * np.clip((face.center[2] - at.z) / face.half_height, 0, 1.5)
    behind = at.y - rim_y
    wall += face.rim * np.exp(-((behind / 6) ** 2)) * np.where(is_lateral | is_up, 1.0, 0.6)
    return Orbit(*(np.asarray(f, np.float32) for f in (outside, along, behind, wall)))


def add_face(face: Face, at: Grid, bone: Mask, orbit: Orbit, rng: np.random.Generator) -> Mask:
    """Add the bones of the face to those of the braincase, and cut the openings."""
    grain = at.noise(rng, 7.0)  # thin bone has gaps where it is low
    keep = np.clip(1 + np.float32(face.gaps) * grain, 0, 1.2)
    coarse = max(at.voxel_mm / THIN_MM, 1.0)
    thin = np.minimum(orbit.wall, 2 * THIN_MM) * coarse
    wall = np.where(orbit.wall > 2 * THIN_MM * coarse, orbit.wall, thin * keep)
    bone = bone | ((orbit.outside < wall) & (orbit.behind > 0) & (orbit.along < 1.0))
    bone |= _cheek(face, at)
    bone |= _jaw(face, at, keep)
    bone |= _nose(face, at)
    bone &= ~_nasal_cavity(face, at)
    bone |= _ethmoid(face, at, rng) & (orbit.outside > 0)
    fissure = ellipsoid(at, (face.apex[0] + 6, face.apex[1] - 2, face.apex[2] - 4), (9.0, 7.0, 3.0))
    return np.asarray(bone & ~((orbit.outside < 0) & (orbit.along < 1.12)) & (fissure > 0))


def _cheek(face: Face, at: Grid) -> Mask:
    """Return zygomatic bone, its arch, and its junction with the frontal bone."""
    aside, _, height = face.center
    edge, low = aside + face.half_width + 2, height - face.half_height
    temple = face.rim_y[1]
    body = (edge - 5.0, temple - 1.0, low - 3.0)
    pillar = tube(
        at,
        [
            (edge - 5, temple - 5, height + face.half_height),
            (edge + 1, temple + 3, height + 5),
            (edge + 1, temple + 4, height - 6),
            body,
        ],
        (1.0, 0.75, 1.0),
    )
    bone = pillar < max(face.pillar, 1.1 * at.voxel_mm)
    bone |= ellipsoid(at, body, (7.0, 8.0, 9.0)) < 0
    # The temporal fossa is open between the arch and the greater wing.
    arch: list[Point] = [
        body,
        (0.4 * edge + 0.6 * face.arch, temple + 18, low - 6),
        (face.arch, temple + 36, low - 5),
        (face.arch, -12.0, -44.0),
        (face.arch - 5, 4.0, -42.0),
    ]
    bone |= tube(at, arch, (1.2, 1.0, 0.7)) < max(face.arch_radius, 1.1 * at.voxel_mm)
    return np.asarray(bone)


def _jaw(face: Face, at: Grid, keep: Field) -> Mask:
    """Return the upper jaw: thin walls around the sinus, palate, and the arch of the teeth."""
    sinus = ellipsoid(at, face.jaw, face.jaw_radii, 2.5)
    wall = max(face.floor, 0.7 * at.voxel_mm) * keep
    # The wall in front is the strongest.
    wall = np.where(at.y < face.jaw[1] - 4, max(2.2, 1.5 * at.voxel_mm), wall)
    bone = (sinus > 0) & (sinus < wall)
    wide, long = face.jaw[0] + 1, face.jaw_radii[1] + 12
    back = face.jaw[1] + face.jaw_radii[1] - 4
    outline = np.sqrt((at.x / wide) ** 2 + ((at.y - back) / long) ** 2)
    in_front = at.y < back
    high = face.palate
    teeth = (np.abs(outline - 0.88) < 0.15) & (at.z < high + 3) & (at.z > high - face.teeth)
    palate = (outline < 0.9) & (np.abs(at.z - high) < max(1.6, 0.9 * at.voxel_mm))
    bone |= (teeth | palate) & in_front
    # The plates of the pterygoid process carry the jaw from behind.
    plates = tube(
        at, [(14.0, -22.0, -44.0), (face.jaw[0] - 6, back + 2, high + 2)], (1.3, 0.6, 1.0)
    )
    return np.asarray(bone | (plates < 3.0))


def _ridge(face: Face, at: Grid) -> Field:
    """Return y of the ridge of the nose, which is extended up and down, by height."""
    down = (face.nasion[2] - at.z) / (face.nasion[2] - face.nose[2])
    return np.asarray(face.nasion[1] + (face.nose[1] - face.nasion[1]) * np.clip(down, -0.3, 1))


def _nose(face: Face, at: Grid) -> Mask:
    """Return nasal bones and the frontal processes of the jaw: a roof that leans on the orbits."""
    inside = at.y - _ridge(face, at) - face.nose_slope * at.aside
    inside = inside / np.float32(np.hypot(1, face.nose_slope))
    wall = max(2.4, 1.3 * at.voxel_mm)
    low = face.nose[2] - 0.9 * np.maximum(at.aside - 4, 0)  # further down at the side
    is_nose = (at.z > low) & (at.z < face.nasion[2] + 8) & (at.aside < _THICKEST_NOSE_MM)
    bone = (inside > 0) & (inside < wall) & is_nose
    # Between the orbits the root of the nose is solid.
    root = ellipsoid(at, (0.0, face.nasion[1] + 4, face.nasion[2] + 3), (11.0, 6.0, 9.0)) < 0
    side: list[Point] = [
        (face.center[0] - face.half_width - 1, face.rim_y[0] + 2, face.nasion[2]),
        (face.nose_width + 4, face.rim_y[0] + 5, face.nose[2]),
        (face.nose_width + 5, face.jaw[1] - face.jaw_radii[1] + 2, face.palate + 6),
    ]
    return np.asarray(bone | root | (tube(at, side) < max(3.0, 1.1 * at.voxel_mm)))


def _nasal_cavity(face: Face, at: Grid) -> Mask:
    """Return the air behind the opening of the nose, which is shaped like a pear."""
    up = (at.z - face.palate - 2) / (face.nasion[2] - 6 - face.palate)
    width = face.nose_width * np.clip(1.1 - 0.75 * up, 0, 1)
    wall = max(2.4, 1.3 * at.voxel_mm) * float(np.hypot(1, face.nose_slope))
    behind = at.y > _ridge(face, at) + face.nose_slope * at.aside + wall
    below = at.z < face.nose[2] - 0.9 * np.maximum(at.aside - 4, 0)
    inside = (at.aside < width) & (up > 0) & (up < 1) & (behind | below)
    return np.asarray(inside & (at.y < face.jaw[1] + face.jaw_radii[1] + 4))


def _ethmoid(face: Face, at: Grid, rng: np.random.Generator) -> Mask:
    """Return septum, conchae and ethmoid cells: scattered thin bone between the orbits."""
    cells = np.abs(at.noise(rng, 6.0)) < rng.uniform(0.05, 0.22)
    holes = at.noise(rng, 11.0) > rng.uniform(-0.4, 0.8)
    width = face.center[0] - face.half_width
    inside = (at.aside < width) & (at.y > face.rim_y[0] + 10) & (at.y < face.apex[1] + 8)
    inside &= (at.z < face.nasion[2] + 2) & (at.z > face.palate)
    septum = (at.aside < max(0.9, 0.55 * at.voxel_mm)) & (at.y > face.rim_y[0] + 6)
    return np.asarray(inside & ~holes & (cells | septum))
