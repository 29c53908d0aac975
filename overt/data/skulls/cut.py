"""Write defects cut out of a scanned skull in the layout of SkullBreak, to score models on them.

The skull is segmented, then resampled to cubic voxels along LPS, like synthetic skulls. Never
imports torch.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from overt.data.making import claim_folder, map_in_processes
from overt.data.skulls.bone import find_bone
from overt.data.skulls.defects import cut_defect
from overt.data.skulls.lists import DEFECTS, SUFFIX
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.prepare import LISTS, save_cloud
from overt.data.skulls.resampling import isotropic_grid, resample_mask
from overt.data.skulls.scans import read_scan
from overt.data.skulls.surfaces import scatter_on_surface, surface_triangles
from overt.data.skulls.volumes import SIDE, Volume
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.geometry.voxels import Mask
from overt.progress import report

FORMAT = 1  # incremented when the same settings produce different volumes


def read_complete(
    scan: Path,
    voxel_mm: float = 1.0,
    threshold: float | None = None,
    spacing: tuple[float, float, float] | None = None,
) -> tuple[Volume, str]:
    """Return the skull of a scan in cubic voxels along LPS, and what its values were taken for."""
    bone, how = find_bone(read_scan(scan, spacing), str(scan), threshold)
    indices = np.argwhere(bone.values)
    if not len(indices):
        raise DataError(f"{scan}: the mask has no voxels (no value above 0); export it again")
    size = np.ptp(bone.to_patient(indices), axis=0) / voxel_mm
    if size.max() > SIDE:
        raise DataError(
            f"{scan}: the bone measures {size.round().astype(int).tolist()} voxels of {voxel_mm:g} "
            f"mm; expected up to {SIDE} per side. Use larger voxels (--voxel-mm), or check the "
            "spacing of the scan."
        )
    # Without the air around the head, files are smaller and cutting is faster.
    low, high = indices.min(axis=0), indices.max(axis=0) + 1
    affine = bone.affine.copy()
    affine[:3, 3] = bone.to_patient(low)
    box = tuple(slice(*ends) for ends in zip(low, high, strict=True))
    cropped = Volume(bone.values[box], affine)
    grid = isotropic_grid(cropped, voxel_mm)
    return grid.with_values(resample_mask(cropped.values, affine, grid)), how


def write_rounds(
    root: Path | str,
    scan: Path | str,
    complete: Volume,
    count: int = 2,
    points: int = 8000,
    seed: int = 0,
    workers: int = 0,
) -> int:
    """Write missing rounds 0 to `count` - 1 of five defects each; return how many.

    All rounds are of one skull, so all are in test.csv, and train.csv is empty.
    """
    root = Path(root)
    content = hashlib.sha256(np.packbits(complete.values).tobytes())
    settings = {
        "format": FORMAT,
        "scan": Path(scan).name,
        "bone": content.hexdigest()[:16],
        "voxel_mm": complete.spacing[0],
        "points": points,
        "seed": seed,
    }
    claim_folder(root, settings, "defects")
    # The complete skull is written last: if it exists, the rest does too.
    missing = [
        number
        for number in range(count)
        if not (root / "complete_skull" / f"{number:03d}{SUFFIX}.npy").is_file()
    ]
    work = partial(write_round, root, scan, complete, points=points, seed=seed)
    for done, _ in enumerate(map_in_processes(work, missing, workers), start=1):
        report("cutting defects", count - len(missing) + done, count)
    rows = "".join(f"complete_skull/{number:03d}{SUFFIX}.npy\n" for number in range(count))
    for file, text in zip(LISTS, ("", rows), strict=True):
        if missing or not (root / file).is_file():  # a list that a user shortened stays so
            with new_file(root / file) as hidden:
                hidden.write_text(text)
    return len(missing)


def write_round(
    root: Path, scan: Path | str, complete: Volume, number: int, points: int, seed: int
) -> None:
    """Write the volumes and clouds of five random defects and of the complete skull."""
    rng = np.random.default_rng((seed, number))

    def write(mask: Mask, *folders: str) -> None:
        path = root.joinpath(*folders, f"{number:03d}.nrrd")
        write_nrrd(path, complete.with_values(mask))
        cloud = scatter_on_surface(surface_triangles(mask), points, rng)
        save_cloud(path.with_name(f"{number:03d}{SUFFIX}.npy"), cloud)

    for defect in DEFECTS["skullbreak"]:
        implant = cut_defect(complete.values, complete.affine, defect, rng)
        if not implant.any() or np.array_equal(implant, complete.values):
            raise DataError(
                f"{scan}: the defect {defect} of round {number:03d} removes "
                f"{'all' if implant.any() else 'no'} bone; expected a scan with the whole vault of "
                "the skull. Check its orientation and units (mm)."
            )
        write(complete.values & ~implant, "defective_skull", defect)
        write(implant, "implant", defect)
    write(complete.values, "complete_skull")
