"""The folder of one completed skull: volumes, meshes, a page and the facts, in patient space."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.skulls.meshes import Points, write_obj, write_stl
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.resampling import isotropic_grid, resample_mask
from overt.data.skulls.scans import write_nifti
from overt.data.skulls.volumes import Volume
from overt.files.atomic import new_file
from overt.geometry.implant import Finished, measures, rim_faces, wall_thickness
from overt.geometry.isosurface import mask_surface, open_edges
from overt.geometry.voxels import Mask
from overt.metrics.implants import dice
from overt.viz.case_page import Shown, write_case_page

HAS_NIBABEL = find_spec("nibabel") is not None
_SKULL_VOXEL_MM = 2.0  # of the skull on the page, which has to be small
_SPREAD_MM = 4.0  # the end of the color scale of samples
_BONE, _METAL, _SAMPLE = (0.85, 0.82, 0.75, 1.0), (0.95, 0.45, 0.1, 1.0), (0.2, 0.45, 0.8, 1.0)
_RIM = (0.15, 0.15, 0.2, 1.0)
# On the page; case.json has the keys.
_WORDS = {
    "volume_cm3": "volume, cm³",
    "extent_i_mm": "extent along the first axis of the scan, mm",
    "extent_j_mm": "along the second, mm",
    "extent_k_mm": "along the third, mm",
    "gap_to_skull_mm": "smallest distance to the skull, mm",
    "furthest_from_skull_mm": "largest distance to the skull, mm",
    "wall_p05_mm": "wall thickness, 5th percentile, mm",
    "wall_mm": "wall thickness, median, mm",
    "wall_p95_mm": "wall thickness, 95th percentile, mm",
    "thin_voxels": "voxels in walls thinner than asked",
    "faces": "triangles of the mesh",
    "open_edges": "open edges of the mesh",
    "dice_with_implant": "Dice with the implant",
    "dice_with_other_samples": "Dice with other samples",
    "mm_from_implant": "mean distance to the implant, mm",
}

# All that `overt complete` writes; other files in its folder are the user's.
FILES = (
    "implant.nrrd", "implant.nii.gz", "implant.stl", "implant.obj", "sample_[0-9]*.ply",
    "case.json", "report.html", "picture.png", "input.npy", "sample.npy", "shift.npy", "scale.npy",
)  # fmt: skip


class Case(NamedTuple):
    """A completed skull in the grid of its scan."""

    title: str
    skull: Volume  # of booleans
    implant: Finished  # the one to be used
    samples: Sequence[Mask]  # those that voted; none for a baseline
    facts: dict[str, Any]  # for case.json
    notes: Sequence[str]  # for the page


def clear_case(folder: Path) -> None:
    """Remove the files of an earlier case: none of them must be taken for one of the next."""
    for pattern in FILES:
        for path in folder.glob(pattern):
            path.unlink()


def write_case(folder: Path, case: Case) -> list[str]:
    """Write everything about a case; return the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    skull, (implant, changed, thin) = case.skull, case.implant
    volume = skull.with_values(implant)
    write_nrrd(folder / "implant.nrrd", volume)
    written = ["implant.nrrd"]
    if HAS_NIBABEL:  # else NRRD says the same
        write_nifti(folder / "implant.nii.gz", volume)
        written.append("implant.nii.gz")
    vertices, faces = mask_surface(implant)
    patient = skull.to_patient(vertices)
    # A left-handed grid turns the surface inside out.
    if np.linalg.det(skull.affine[:3, :3]) < 0:
        faces = faces[:, ::-1]
    shown = [bone_mesh(skull)]
    rows = sample_rows(case.samples, implant, skull)
    thickness = np.zeros(0)
    if len(faces):
        rim = rim_faces(vertices, faces, implant, skull.values, skull.spacing)
        thickness = wall_thickness(patient, faces, implant, skull.to_indices, rim)
        used, renumbered = np.unique(rim, return_inverse=True)
        shown.append(Shown("rim", patient[used], renumbered.reshape(-1, 3), _RIM))
        write_stl(folder / "implant.stl", patient, faces)
        write_obj(folder / "implant.obj", patient, faces)
        written += ["implant.stl", "implant.obj"]
        shown.append(Shown("implant", patient, faces, _METAL, thickness))
    for index, sample in enumerate(case.samples if len(case.samples) > 1 else ()):
        corners, sides = mask_surface(sample)
        corners = skull.to_patient(corners)
        distance = _distance(corners, patient)
        rows[index]["mm_from_implant"] = None if distance is None else float(distance.mean())
        title, look = f"sample {index}", (_SAMPLE, distance, _SPREAD_MM)
        shown.append(Shown(title, corners, sides, *look, visible=False, own_view=True))
    shape: dict[str, Any] = measures(implant, skull.values, skull.spacing)
    if len(thickness):
        quantiles = np.quantile(thickness, (0.05, 0.5, 0.95))
        shape |= dict(
            zip(("wall_p05_mm", "wall_mm", "wall_p95_mm"), map(float, quantiles), strict=True)
        )
    shape |= {"thin_voxels": thin, "faces": len(faces), "open_edges": open_edges(faces)}
    shape |= {"changed_voxels": changed}
    facts = case.facts | {"implant": shape, "samples": rows}
    with new_file(folder / "case.json") as hidden:
        hidden.write_text(json.dumps(facts, indent=2, default=str) + "\n")
    tables = {
        "Implant": measure_rows(shape),
        "Samples": [{_WORDS.get(key, key): value for key, value in row.items()} for row in rows],
    }
    write_case_page(folder / "report.html", case.title, shown, tables, case.notes)
    return [*written, "case.json", "report.html"]


def _distance(points: Points, others: Points) -> NDArray[np.float64] | None:
    """Return the distance of each point to the nearest other one; None without any."""
    if not len(points) or not len(others):
        return None
    from scipy.spatial import KDTree

    return np.asarray(KDTree(others).query(points)[0])


def measure_rows(shape: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measures of an implant with labels, one in each row."""
    values = {_WORDS.get(key, key): value for key, value in shape.items()}
    for repair, count in values.pop("changed_voxels").items():
        values[f"voxels changed: {repair.replace('_', ' ')}"] = count
    return [{"measure": name, "value": value} for name, value in values.items()]


def bone_mesh(skull: Volume) -> Shown:
    """Return the skull on a coarse grid."""
    grid = isotropic_grid(skull, max(_SKULL_VOXEL_MM, min(skull.spacing)))
    vertices, faces = mask_surface(resample_mask(skull.values, skull.affine, grid))
    return Shown("skull", grid.to_patient(vertices), faces, _BONE)


def sample_rows(samples: Sequence[Mask], implant: Mask, skull: Volume) -> list[dict[str, Any]]:
    """Return volume and agreement of every sample: how much the network is sure of."""
    voxel = float(np.prod(skull.spacing)) / 1000
    rows = []
    for index, sample in enumerate(samples):
        others = [dice(sample, other) for k, other in enumerate(samples) if k != index]
        rows.append(
            {
                "sample": index,
                "volume_cm3": float(sample.sum()) * voxel,
                "dice_with_implant": dice(sample, implant),
                "dice_with_other_samples": float(np.mean(others)) if others else None,
            }
        )
    return rows
