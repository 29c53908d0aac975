"""Cut defects out of complete skulls, real or synthetic, like those of SkullBreak.

A defect goes through the wall toward the center of the vault and has an irregular outline; the
removed part is the implant. Never imports torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overt.data.skulls.volumes import Matrix
from overt.errors import DataError
from overt.geometry.vault import vault_middle
from overt.geometry.voxels import Mask, largest_part

# Direction from the center of the vault (x left, y back, z up), its variation, and the radius in mm
# along the skull. The side is random if x is not 0.
_KINDS: dict[str, tuple[tuple[float, float, float], float, tuple[float, float]]] = {
    "bilateral": ((0.0, 0.05, 1.0), 0.15, (38.0, 52.0)),
    "frontoorbital": ((0.5, -1.0, -0.05), 0.1, (28.0, 42.0)),
    "parietotemporal": ((1.0, 0.15, 0.4), 0.15, (32.0, 48.0)),
    "random_1": ((0.0, 0.0, 0.0), 1.0, (22.0, 45.0)),
    "random_2": ((0.0, 0.0, 0.0), 1.0, (22.0, 45.0)),
}
KINDS = tuple(_KINDS)
_LOWEST_MM = 48.0  # below the middle of the vault nothing is cut


def cut_defect(complete: Mask, affine: Matrix, kind: str, rng: np.random.Generator) -> Mask:
    """Return the implant: the voxels that a defect removes from a complete skull."""
    indices = np.argwhere(complete)
    if not len(indices):
        raise DataError("a defect cannot be cut out of an empty volume")
    points = indices @ affine[:3, :3].T + affine[:3, 3]  # (N, 3) mm
    offset = points - vault_middle(points)
    distance = np.linalg.norm(offset, axis=1)
    toward, spread, (low, high) = _KINDS[kind]
    direction = np.array(toward) + spread * rng.normal(size=3)
    if kind.startswith("random"):
        direction[2] = abs(direction[2]) + 0.2
    elif toward[0]:
        direction[0] *= rng.choice([-1.0, 1.0])
    direction /= np.linalg.norm(direction)
    across, along = _tangents(direction)
    # The angle from the center of the defect, and the azimuth around it.
    angle = np.arccos(np.clip(offset @ direction / np.maximum(distance, 1e-6), -1, 1))
    around = np.arctan2(offset @ along, offset @ across)
    outline = np.ones(len(points))
    for wave in (2, 3, 4, 5):
        outline += rng.normal() * 0.18 / wave * np.cos(wave * around + rng.uniform(0, 2 * np.pi))
    reach = rng.uniform(low, high) / np.median(distance[angle < 0.4]) if (angle < 0.4).any() else 0
    removed = (angle < reach * outline) & (offset[:, 2] > -_LOWEST_MM)
    implant = np.zeros_like(complete)
    implant[tuple(indices[removed].T)] = True
    return largest_part(implant)


def _tangents(direction: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    helper = np.eye(3)[int(np.argmin(np.abs(direction)))]
    across = np.cross(direction, helper)
    across /= np.linalg.norm(across)
    return across, np.cross(direction, across)
