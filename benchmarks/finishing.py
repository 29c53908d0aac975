"""What each treatment of an implant changes, on synthetic implants whose truth is known.

    python benchmarks/finishing.py

A cap of a spherical shell (walls of 3 to 8 mm, voxels of 0.5 mm) is spoiled in five ways; printed
are Dice and HD, the largest distance, in mm, before and after the treatment that is made for it.
"""

from __future__ import annotations

import argparse

import numpy as np

from overt.geometry.implant import Finishing, finish, measures
from overt.geometry.voxels import Mask
from overt.metrics.implants import implant_scores

VOXEL_MM = 0.5
SPACING = (VOXEL_MM,) * 3
RADIUS_MM, HALF_MM = 40.0, 22.0


def cap(wall: float) -> tuple[Mask, Mask, np.ndarray, np.ndarray]:
    """Return a cap of a shell, the shell around it, and for each voxel angle and depth in mm."""
    axis = np.arange(-HALF_MM - 8, HALF_MM + 8, VOXEL_MM)
    up = np.arange(RADIUS_MM - 24, RADIUS_MM + 4, VOXEL_MM)
    x, y, z = np.meshgrid(axis, axis, up, indexing="ij")
    depth = RADIUS_MM - np.sqrt(x**2 + y**2 + z**2)
    shell = (depth > 0) & (depth < wall)
    aside = np.hypot(x, y)
    return shell & (aside < HALF_MM), shell & (aside >= HALF_MM), aside, depth


def spoiled(wall: float) -> dict[str, tuple[Mask, Finishing]]:
    """Return implants with one fault each, and what is to be done about it."""
    implant, skull, aside, depth = cap(wall)
    rng = np.random.default_rng(0)
    specks = implant | (rng.random(implant.shape) < 2e-4)
    part = implant.copy()
    part[2:12, 2:12, 2:12] = True
    cavity = implant & ~((aside < 3) & (np.abs(depth - wall / 2) < wall / 4))
    hole = implant & ~(aside < 1.5)
    layer = (depth > -VOXEL_MM) & (depth <= 0) & (aside < HALF_MM)
    rough = implant | (layer & (rng.random(implant.shape) < 0.3))
    thin = implant & ~((aside < 8) & (depth > 1.5))
    named = {
        "specks": (specks, Finishing()),
        "second part": (part, Finishing()),
        "cavity": (cavity, Finishing()),
        "hole of 3 mm": (hole, Finishing(hole_mm=5.0)),
        "rough surface": (rough, Finishing(smooth_mm=0.75)),
        "thin to 1.5 mm": (thin, Finishing(min_wall_mm=3.0)),
    }
    return {name: (mask & ~skull, how) for name, (mask, how) in named.items()}


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("wall mm  fault             Dice before  after     HD before  after")
    for wall in (3.0, 5.0, 8.0):
        implant, skull, aside, _ = cap(wall)
        for name, (mask, how) in spoiled(wall).items():
            before = implant_scores(mask, implant, skull, SPACING)
            finished = finish(mask, skull, SPACING, how).implant
            after = implant_scores(finished, implant, skull, SPACING)
            print(
                f"{wall:7g}  {name:16s}  {before['dsc']:11.4f}  {after['dsc']:.4f}"
                f"  {before['hd']:11.2f}  {after['hd']:5.2f}"
            )
            if how.min_wall_mm:
                walls = [m[aside < 4].sum() / implant[aside < 4].sum() for m in (mask, finished)]
                print(f"{'':26s} wall in the thin place: {walls[0]:.2f} -> {walls[1]:.2f} of true")
        for clearance in (0.5, 1.0):
            kept = finish(implant, skull, SPACING, Finishing(clearance_mm=clearance)).implant
            gap = measures(kept, skull, SPACING)["gap_to_skull_mm"]
            print(f"{wall:7g}  clearance {clearance:g} mm: the skull is {gap:.2f} mm away")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
