"""How good a solid from true points is: the ceiling of every score of volumes.

    python benchmarks/solids.py
    python benchmarks/solids.py --walls 5 --voxels 1.6 --points 1024 --noise 1.5

Pieces of a skull's wall, 76 mm across, of 3 to 12 mm and voxels of 0.4 to 0.8 mm: 3,072 points are
drawn from their surface as a data set draws them, made into a solid, and compared with the piece.
Nothing is set for any wall or voxel. Goal: Dice of 0.97 or more, HD95 of one voxel at most. Noise
on the points tells how exact sampled ones have to be.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from overt.data.skulls.surfaces import scatter_on_surface, surface_triangles
from overt.geometry.solid import solid_of_points
from overt.metrics.implants import implant_scores

RADIUS_MM = 55.0  # of the sphere


def piece(wall_mm: float, voxel_mm: float, across_mm: float) -> NDArray[np.bool_]:
    """Return a cap of a spherical shell as a mask."""
    height = np.sqrt(1 - (across_mm / 2 / RADIUS_MM) ** 2)  # from which on it is the piece
    across = across_mm + 8
    size = np.array([across, across, RADIUS_MM * (1 - height) + wall_mm + 10])
    shape = [int(count) for count in np.ceil(size / voxel_mm)]
    grid = np.indices(shape).transpose(1, 2, 3, 0) * voxel_mm
    offset = grid - [across / 2, across / 2, wall_mm + 3 - RADIUS_MM * height]
    distance = np.linalg.norm(offset, axis=-1)
    wall = (distance < RADIUS_MM) & (distance > RADIUS_MM - wall_mm)
    return np.asarray(wall & (offset[..., 2] > height * distance))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--walls", type=float, nargs="+", default=[3, 4, 5, 6, 7, 8, 10, 12])
    parser.add_argument("--voxels", type=float, nargs="+", default=[0.4, 0.5, 0.6, 0.7, 0.8])
    parser.add_argument("--across", type=float, default=76.0, help="of the piece, mm; up to 110")
    parser.add_argument("--points", type=int, default=3072)
    parser.add_argument("--noise", type=float, default=0.0, help="deviation along each axis, mm")
    options = parser.parse_args()
    print("wall mm | voxel mm | Dice | HD95 in voxels | Dice below 0.97 or HD95 above 1")
    for wall in options.walls:
        for voxel in options.voxels:
            mask = piece(wall, voxel, options.across)
            rng = np.random.default_rng(0)
            points = scatter_on_surface(surface_triangles(mask), options.points, rng)
            points = points + rng.normal(size=points.shape) * options.noise / voxel
            solid = solid_of_points(points, mask.shape, (voxel,) * 3)
            scores = implant_scores(solid, mask, ~mask, (voxel,) * 3)
            missed = scores["dsc"] < 0.97 or scores["hd95"] > voxel + 1e-9
            print(
                f"{wall:7g} | {voxel:8g} | {scores['dsc']:.3f} | {scores['hd95'] / voxel:.2f} | "
                f"{'missed' if missed else ''}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
