"""The braincase of synthetic skulls: outline, thickness by region, three fossae of the base.

The numbers are ranges of adult skulls in mm. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.data.skulls.grids import NODE_MM, Field, Grid

# Voxels: sqrt(3) keep air from passing at corners if distances are exact; slopes are up to 1.2.
MIN_WALL = 2.1
# Thinner bone has gaps. Voxels larger than this would lose all of it, so it is thicker there.
THIN_MM = 1.6
# Radial bumps: direction from the center of the vault (on both sides), width, and range in
# mm of the height. Directions are unit vectors, nearly.
_BUMPS: tuple[tuple[tuple[float, float, float], float, tuple[float, float]], ...] = (
    ((0.00, -0.72, 0.69), 0.34, (-7.0, 1.0)),  # a sloping or a steep forehead
    ((0.40, -0.80, 0.45), 0.20, (-0.5, 2.0)),  # frontal eminences
    ((0.00, -0.98, -0.10), 0.11, (0.0, 3.5)),  # glabella
    ((0.28, -0.94, -0.10), 0.12, (0.5, 5.0)),  # brow ridges
    ((0.56, -0.80, -0.02), 0.13, (0.5, 6.5)),  # zygomatic process of the frontal bone
    ((0.48, -0.82, 0.25), 0.22, (-0.5, 4.0)),  # a broad forehead
    ((0.66, -0.66, -0.28), 0.17, (-8.0, -2.0)),  # temporal fossa behind the orbit
    ((0.98, 0.00, -0.20), 0.22, (-1.5, 3.0)),  # temporal squama
    ((0.72, 0.25, 0.62), 0.26, (-1.0, 5.5)),  # parietal eminences
    ((0.00, 0.40, 0.92), 0.30, (-3.0, 2.0)),  # vertex, and flat behind it
    ((0.00, 0.98, 0.10), 0.30, (-4.0, 3.5)),  # flat or bulging occiput
    ((0.00, 0.88, -0.45), 0.10, (0.0, 4.0)),  # external occipital protuberance
)
# The same for the thickness of the wall, as a factor.
_WALLS: tuple[tuple[tuple[float, float, float], float, tuple[float, float]], ...] = (
    ((0.95, -0.10, -0.15), 0.30, (-0.55, -0.25)),  # temporal squama
    ((0.78, -0.55, -0.15), 0.22, (-0.45, -0.10)),  # pterion
    ((0.35, -0.85, 0.25), 0.35, (-0.15, 0.25)),  # forehead
    ((0.00, 0.85, -0.40), 0.22, (0.10, 0.70)),  # occipital protuberance
    ((0.00, 0.15, 0.98), 0.40, (-0.10, 0.25)),  # vertex
    ((0.55, 0.72, -0.40), 0.20, (-0.45, 0.00)),  # cerebellar fossa
)


@dataclass(frozen=True)
class Cranium:
    """Sizes of a braincase in mm."""

    width: float  # half of it
    height: float  # above the center
    below: float
    forehead: float
    occiput: float
    power: float  # 2: an ellipsoid; more: boxier
    pear: float  # how much narrower the front is
    bumps: tuple[float, ...]  # heights
    waves: float  # of the outline
    wall: float
    walls: tuple[float, ...]  # relative changes
    thinnest: float
    # The frontal sinus makes the wall thicker: depth, half width, height of center, half height.
    sinus: tuple[float, float, float, float] | None
    anterior: float  # heights of the fossae
    descent: float  # of the anterior fossa toward the back: mm by mm
    sella: float
    middle: float
    posterior: float
    ridge: float  # y of the sphenoid ridge, behind the orbits
    wing: float  # how much further in front it is at the side: mm by mm
    slant: float  # of the wall in front of the middle fossa: 2 for upright
    petrous: float  # height of the petrous ridge above the middle fossa
    plate: float  # thickness of the base

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Cranium:
        """Return a random braincase."""
        sinus = None
        if rng.random() < 0.85:
            sinus = (
                rng.uniform(4, 12),
                rng.uniform(10, 34),
                rng.uniform(-6, 4),
                rng.uniform(9, 22),
            )
        anterior = rng.uniform(-13, -1)
        forehead, occiput = rng.uniform(80, 89), rng.uniform(80, 89)
        length = forehead + occiput
        return cls(
            width=rng.uniform(0.73, 0.88) / 2 * length,
            height=rng.uniform(0.41, 0.46) * length,
            below=rng.uniform(70, 80),
            forehead=forehead,
            occiput=occiput,
            power=rng.uniform(2.0, 2.5),
            pear=rng.uniform(0.02, 0.24),
            bumps=tuple(float(rng.uniform(*heights)) for *_, heights in _BUMPS),
            waves=rng.uniform(0.2, 0.9),
            wall=rng.uniform(4.3, 7.6),
            walls=tuple(float(rng.uniform(*changes)) for *_, changes in _WALLS),
            thinnest=rng.uniform(2.0, 3.2),
            sinus=sinus,
            anterior=anterior,
            descent=rng.uniform(0.0, 0.3),
            sella=anterior - rng.uniform(10, 17),
            middle=rng.uniform(-50, -41),
            posterior=rng.uniform(-68, -56),
            ridge=rng.uniform(43, 51) - forehead,
            wing=rng.uniform(0.3, 0.6),
            slant=rng.uniform(1.6, 5.0),
            petrous=rng.uniform(6, 14),
            plate=rng.uniform(2.4, 4.5),
        )

    def radius(self, x: Field, y: Field, z: Field) -> Field:
        """Return the radius of the outer surface in directions (x, y, z) of length 1."""
        aside = np.abs(x)
        across = self.width * (1 + self.pear * y)
        length = np.where(y < 0, self.forehead, self.occiput)
        height = np.where(z > 0, self.height, self.below)
        inverse = (aside / across) ** self.power
        inverse += (np.abs(y) / length) ** self.power + (np.abs(z) / height) ** self.power
        radius = inverse ** (-1 / self.power)
        for (center, width, _), bump in zip(_BUMPS, self.bumps, strict=True):
            radius += bump * _near(aside, y, z, center, width)
        return np.asarray(radius, dtype=np.float32)

    def front(self, aside: float, z: float) -> float:
        """Return y of the outer surface of the forehead at a distance from the midline."""
        y = np.linspace(-110, -20, 181, dtype=np.float32)
        distance = np.sqrt(y * y + np.float32(aside**2 + z**2))
        radius = self.radius(aside / distance, y / distance, z / distance)
        return float(y[np.argmax(radius > distance)])

    def thickness(self, x: Field, y: Field, z: Field) -> Field:
        """Return the thickness of the wall in directions of length 1, relative to `wall`."""
        aside = np.abs(x)
        factor = np.ones_like(x)
        for (center, width, _), change in zip(_WALLS, self.walls, strict=True):
            factor += change * _near(aside, y, z, center, width)
        return factor

    def floor(self, aside: Field, y: Field) -> Field:
        """Return the height of the base below the brain: three fossae and the ridges between."""
        front = (
            self.anterior
            - self.descent * (y + 65)
            - 9 * np.exp(-((aside / 8) ** 2)) * _step(-40 - y, 4)
        )
        # The wing of the sphenoid bone follows the lateral wall of the orbit.
        behind_wing = _step(y - self.ridge + self.wing * np.maximum(aside - 18, 0), self.slant)
        center = _step(15 - aside, 2.0)  # body of the sphenoid bone
        middle = self.middle + (self.sella - self.middle) * center
        petrous_y = -7 + 0.4 * aside
        behind_petrous = _step(y - petrous_y - 4, 2.5)
        ridge = np.exp(-(((y - petrous_y) / 7) ** 2)) * _step(aside - 12, 3)
        back = self.posterior + 5 * (aside / 40) ** 2
        floor = front + (middle - front) * behind_wing
        floor += (back - middle) * behind_petrous + self.petrous * ridge
        return np.asarray(floor, dtype=np.float32)


@dataclass(frozen=True)
class Braincase:
    """Fields of a braincase; distances in mm are along the normal, nearly."""

    depth: Field  # below the outer surface
    wall: Field  # thickness of the vault
    above: Field  # above the inner surface of the base
    plate: Field  # thickness of the base


def braincase(
    cranium: Cranium, nodes: Grid, at: Grid, rng: np.random.Generator, roughness_mm: float
) -> Braincase:
    """Return the fields of a braincase on a grid of voxels; `nodes` is the same head."""
    distance = np.sqrt(nodes.x**2 + nodes.y**2 + nodes.z**2)
    safe = np.maximum(distance, 1e-3)
    x, y, z = nodes.x / safe, nodes.y / safe, nodes.z / safe
    outline = cranium.radius(x, y, z) + cranium.waves * nodes.noise(rng, 33.0)
    depth = _normalized(outline - distance)
    wall = cranium.wall * cranium.thickness(x, y, z) * (1 + 0.12 * nodes.noise(rng, 22.0))
    wall = np.maximum(wall, cranium.thinnest)
    if cranium.sinus is not None:
        deep, wide, height, high = cranium.sinus
        lobes = np.exp(-((nodes.x / wide) ** 4) - ((nodes.z - height) / high) ** 4)
        wall += deep * lobes * _step(-30 - nodes.y, 5)
    floor = cranium.floor(nodes.aside, nodes.y) + 1.2 * nodes.noise(rng, 14.0)
    above = _normalized(nodes.z - floor)
    # The roofs of the orbits are the thinnest part of the base.
    roof = np.exp(-(((nodes.aside - 30) / 13) ** 2)) * _step(cranium.ridge - nodes.y, 3)
    plate = cranium.plate * (1 - 0.6 * roof) * (1 + 0.3 * nodes.noise(rng, 12.0))
    plate *= max(at.voxel_mm / THIN_MM, 1.0)
    rough = np.float32(roughness_mm)
    return Braincase(
        depth=at.fill(depth) + rough * at.noise(rng, 4.5),
        wall=np.maximum(
            at.fill(wall) + rough * at.noise(rng, 4.5), np.float32(MIN_WALL * at.voxel_mm)
        ),
        above=at.fill(above),
        plate=at.fill(plate),
    )


def _near(
    aside: Field, y: Field, z: Field, center: tuple[float, float, float], width: float
) -> Field:
    """Return a bump around a direction and its mirror image."""
    square = (aside - center[0]) ** 2 + (y - center[1]) ** 2 + (z - center[2]) ** 2
    return np.asarray(np.exp(square / np.float32(-2 * width**2)))


def _step(distance: NDArray[np.floating[Any]], width: float) -> NDArray[np.floating[Any]]:
    """Return 0 far below a distance of 0 and 1 far above it."""
    return np.asarray(1 / (1 + np.exp(np.clip(distance / -width, -30, 30))))


def _normalized(field: Field) -> NDArray[np.float32]:
    """Divide a field at nodes by its slope, so that it is a distance near its zero."""
    slopes = np.gradient(field, np.float32(NODE_MM))
    slope = np.sqrt(slopes[0] ** 2 + slopes[1] ** 2 + slopes[2] ** 2)
    return np.asarray(field / np.maximum(slope, 0.5), dtype=np.float32)
