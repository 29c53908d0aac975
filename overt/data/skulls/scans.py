"""Read head scans in any common format, in patient space.

DICOM folders, NRRD, NIfTI, InVesalius projects and NumPy arrays provide values; closed meshes
become masks. The packages that read them are optional. Never imports torch.
"""

from __future__ import annotations

import gzip
import logging
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from overt.data.skulls.dicom import MEDICAL, is_dicom, read_dicom
from overt.data.skulls.invesalius import read_invesalius
from overt.data.skulls.meshes import MESHES, Faces, Points, read_mesh
from overt.data.skulls.nrrd import names_space, read_nrrd
from overt.data.skulls.volumes import LPS_TO_RAS, Array, Matrix, Volume
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import check_file, check_unpacked, open_arrays, read_file, unpack_gzip
from overt.geometry.isosurface import enclosed_volume
from overt.geometry.solid import solid_of_mesh

logger = logging.getLogger(__name__)

MESH_VOXEL_MM = 0.5
SMALLEST_MESH_MM, LARGEST_MESH_MM = 5.0, 1000.0  # along the longest axis
# A scan of the whole body is shorter; one of mm that was saved in meters is smaller.
SMALLEST_MM, LARGEST_MM = 1.0, 2000.0  # along the longest axis
LARGEST_VOXEL_MM = 20.0
LARGEST_TILT = 1.0  # degrees between two axes, from a right angle
FORMATS = (
    "a DICOM folder or multi-frame file, .nrrd, .nii, .nii.gz, .inv3, .npz (array `values`, "
    "`spacing` or `affine`), "
    f".npy with --spacing, or a mesh ({', '.join(MESHES)})"
)


def read_scan(path: Path, spacing: tuple[float, float, float] | None = None) -> Volume:
    """Read a scan of any format; `spacing` in mm is for arrays that do not store theirs."""
    if not path.exists():
        raise DataError(f"no scan at {path}; check the path")
    name = path.name.lower()
    if path.is_dir() or is_dicom(path):
        volume = read_dicom(path)
    elif name.endswith(".nrrd"):
        volume = read_nrrd(path)
        if not names_space(path):
            logger.warning(
                "%s: the header names no space, so the patient's left is unknown; its axes are "
                "taken for left, posterior, superior. Check that the implant is on the right side.",
                path,
            )
    elif name.endswith((".nii", ".nii.gz")):
        volume = read_nifti(path)
    elif name.endswith(".inv3"):
        volume = read_invesalius(path)
    elif name.endswith((".npz", ".npy")):
        volume = read_array(path, spacing)
    elif name.endswith(MESHES):
        volume = volume_of_mesh(path)
    else:
        raise DataError(f"{path} is not a readable scan; expected {FORMATS}")
    shape = volume.values.shape
    if len(shape) != 3:
        raise DataError(f"{path}: an array of shape {shape}; expected three axes")
    if min(shape) < 2:
        raise DataError(
            f"{path}: an array of shape {shape}; expected at least two slices, and two voxels "
            "along every axis"
        )
    check_extent(volume.check(str(path)), str(path))
    warn_of_skewed_axes(volume, str(path))
    return volume


def warn_of_skewed_axes(volume: Volume, source: str) -> None:
    """Log that distances are not exact where the slices of a scan are shifted, by a tilted gantry.

    Everything written is where it was; clearance, walls and balls are measured along the voxels.
    """
    axes = volume.affine[:3, :3] / np.array(volume.spacing)  # unit columns
    cosines = np.abs(np.triu(axes.T @ axes, 1))
    if cosines.max() < np.sin(np.radians(LARGEST_TILT)):
        return
    stretch = np.linalg.svd(axes, compute_uv=False)
    logger.warning(
        "%s: %.1f degrees between two axes of its voxels, expected 90 (a tilted gantry?): distances"
        " such as clearance and least wall are up to %.0f %% off. Resample the scan to avoid that.",
        source, np.degrees(np.arccos(cosines.max())), 100 * np.abs(stretch - 1).max(),
    )  # fmt: skip


def check_extent(volume: Volume, source: str) -> None:
    """Refuse voxels whose size was not given in mm: resampling them may take all memory."""
    spacing = volume.spacing
    extent = [size * step for size, step in zip(volume.values.shape, spacing, strict=True)]
    if max(extent) > LARGEST_MM or max(spacing) > LARGEST_VOXEL_MM or max(extent) < SMALLEST_MM:
        raise DataError(
            f"{source}: voxels of {_by(spacing)} mm, an extent of {_by(extent)} mm; expected "
            f"voxels up to {LARGEST_VOXEL_MM:g} mm and an extent of {SMALLEST_MM:g} to "
            f"{LARGEST_MM:g} mm. Save the scan with its spacing in mm."
        )


def _by(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.6g}" for number in numbers)


def read_nifti(path: Path) -> Volume:
    """Read a NIfTI volume; its RAS is converted to LPS."""
    try:
        import nibabel
    except ImportError as error:
        raise DataError(f"NIfTI is read by nibabel, which is not installed; {MEDICAL}") from error
    try:
        check_file(path)
        image: Any = nibabel.load(path)
        size = math.prod(image.shape) * image.get_data_dtype().itemsize
        check_unpacked(size, path)
        if max(image.shape[3:], default=1) > 1:
            raise DataError(
                f"{path}: an array of shape {image.shape}; expected three axes. Save one volume "
                "of it."
            )
        if path.suffix.lower() == ".gz":
            # nibabel stops before the checksum, which is at the end.
            unpack_gzip(read_file(path), image.dataobj.offset + size, str(path))
        values = np.asanyarray(image.dataobj)
        affine = LPS_TO_RAS @ np.asarray(image.affine, dtype=np.float64)
        affine[:3] *= _millimeters(image.header)
        if not _is_oriented(image.header):
            logger.warning(
                "%s: the header has neither a qform nor an sform, so the patient's left is unknown;"
                " its axes are taken for left, anterior, superior. Check that the implant is on the"
                " right side.",
                path,
            )
        distance = _disagreement(image)
        if distance > min(image.header.get_zooms()[:3]) / 2:
            logger.warning(
                "%s: the sform and the qform of its header place voxels up to %.3g mm apart; the "
                "sform is used. Check that the implant is at the right place in the programs that "
                "read it.",
                path, distance * _millimeters(image.header),
            )  # fmt: skip
    except DataError:
        raise
    except Exception as error:  # nibabel stops with almost any error on a damaged file
        raise DataError(f"{path} cannot be read as NIfTI ({error})") from error
    return Volume(values.reshape(values.shape[:3]) if values.size else values, affine)


def _millimeters(header: Any) -> float:
    """Return the mm of a NIfTI header's unit of length; an unknown one is mm, as in most files."""
    if "xyzt_units" not in header.keys():  # noqa: SIM118  (not a dict; Analyze has no units)
        return 1.0
    unit = int(header["xyzt_units"]) & 7  # 1: m, 2: mm, 3: micrometers; the other bits are of time
    return {1: 1e3, 3: 1e-3}.get(unit, 1.0)


def _is_oriented(header: Any) -> bool:
    """Return whether a header says how its axes lie in the patient; Analyze has no such field."""
    names = set(header.keys())
    return any(int(header[name]) > 0 for name in ("qform_code", "sform_code") if name in names)


def _disagreement(image: Any) -> float:
    """Return how far apart the two affines of a NIfTI place a corner; 0 where one is absent.

    Analyze has neither, and the quaternion of a qform that nobody uses may be no rotation.
    """
    try:
        affines = [getattr(image, f"get_{name}")(coded=True)[0] for name in ("sform", "qform")]
    except Exception:
        return 0.0
    if any(affine is None for affine in affines):
        return 0.0
    corners = np.array(list(np.ndindex(2, 2, 2))) * (np.array(image.shape[:3]) - 1)  # (8, 3)
    difference = affines[0] - affines[1]
    return float(np.linalg.norm(corners @ difference[:3, :3].T + difference[:3, 3], axis=1).max())


def write_nifti(path: Path, volume: Volume) -> None:
    """Write a mask as NIfTI; LPS becomes RAS."""
    try:
        import nibabel
    except ImportError as error:
        raise DataError(
            f"NIfTI is written by nibabel, which is not installed; {MEDICAL}"
        ) from error
    image: Any = nibabel.Nifti1Image(  # type: ignore[no-untyped-call]
        volume.values.astype(np.uint8), LPS_TO_RAS @ volume.affine
    )
    image.header.set_xyzt_units("mm")
    with new_file(path) as hidden:
        content = image.to_bytes()
        packed = path.suffix == ".gz"
        hidden.write_bytes(gzip.compress(content, 4, mtime=0) if packed else content)


def read_array(path: Path, spacing: tuple[float, float, float] | None) -> Volume:
    """Read a NumPy file; axes are those of LPS unless the archive has an affine."""
    try:
        content = open_arrays(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a NumPy file ({error})") from error
    if isinstance(content, np.ndarray):
        if spacing is None:
            raise DataError(
                f"{path} has no voxel size; give --spacing X Y Z in mm, or an "
                ".npz with `values` and `spacing`"
            )
        return _of_spacing(content, spacing, path)
    with content:
        if "values" not in content or not {"spacing", "affine"} & set(content.files):
            raise DataError(
                f"{path} holds {', '.join(content.files) or 'nothing'}; expected `values` and "
                "`spacing` (3 numbers, mm) or `affine` (4 x 4, voxel indices to LPS in mm)"
            )
        values = _member(content, "values", path)
        if "affine" in content:
            return Volume(values, _numbers(content, "affine", (4, 4), path))
        x, y, z = (float(step) for step in _numbers(content, "spacing", (3,), path))
    return _of_spacing(values, (x, y, z), path)


def _of_spacing(values: Array, spacing: tuple[float, float, float], path: Path) -> Volume:
    if min(spacing) <= 0:  # a negative one would mirror the patient
        raise DataError(f"{path}: a spacing of {_by(spacing)}; expected three sizes above 0, in mm")
    return Volume.of(values, spacing)


def _member(archive: Any, name: str, path: Path) -> Array:
    try:
        return np.asarray(archive[name])
    except Exception as error:  # zipfile, zlib and numpy stop with almost any error on damage
        raise DataError(
            f"{path}: its array `{name}` cannot be read ({error}); expected an array of numbers"
        ) from error


def _numbers(archive: Any, name: str, shape: tuple[int, ...], path: Path) -> Matrix:
    array = _member(archive, name, path)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: its array `{name}` has the shape {array.shape} and the type {array.dtype}; "
            f"expected real numbers of shape {shape}, in mm"
        )
    return array.astype(np.float64)


def volume_of_mesh(path: Path) -> Volume:
    """Return a closed mesh in LPS and mm as a mask with voxels of half a millimeter."""
    vertices, faces = read_mesh(path)
    extent = vertices.max(axis=0) - vertices.min(axis=0)
    # A skull in meters is smaller than a voxel, one in micrometers needs all memory.
    if not SMALLEST_MESH_MM <= extent.max() <= LARGEST_MESH_MM:
        raise DataError(
            f"{path}: the mesh measures {_by(extent)} mm; meshes are in mm, expected "
            f"{SMALLEST_MESH_MM:g} to {LARGEST_MESH_MM:g} mm. Scale it to mm, by 1000 if it is in "
            "meters."
        )
    faces = _outward(vertices, faces, path)
    # Offset by a quarter voxel, so that axis-aligned faces do not pass through voxel centers.
    low, high = vertices.min(axis=0) - 4.5 * MESH_VOXEL_MM, vertices.max(axis=0) + 2
    shape = tuple(int(count) for count in np.ceil((high - low) / MESH_VOXEL_MM))
    affine = np.diag([MESH_VOXEL_MM] * 3 + [1.0])
    affine[:3, 3] = low
    mask = solid_of_mesh((vertices - low) / MESH_VOXEL_MM, faces, shape)
    if not mask.any():
        raise DataError(f"{path}: the mesh encloses no volume; expected a closed surface")
    return Volume(mask, affine)


def _outward(vertices: Points, faces: Faces, path: Path) -> Faces:
    """Return the faces of a closed mesh with normals that point outward; refuse an open one."""
    open_count, total = count_open_edges(vertices, faces)
    if open_count:
        raise DataError(
            f"{path}: {open_count} of {total} edges of the mesh are open: they lack a face on one "
            "side, or its normal is reversed. Expected a closed mesh; close its holes and unify "
            "its normals, for example in MeshLab."
        )
    if enclosed_volume(vertices - vertices.mean(axis=0), faces) >= 0:
        return faces
    logger.warning("%s: the normals of the mesh point inward; they are reversed", path)
    return faces[:, ::-1]


def count_open_edges(vertices: Points, faces: Faces) -> tuple[int, int]:
    """Return how many edges have more faces on one side than on the other, and how many there are.

    Vertices at the same position are one: STL files repeat them for each face.
    """
    order = np.lexsort(vertices.T)  # several times as fast as np.unique
    ordered = vertices[order]
    merged = np.zeros(len(vertices), dtype=np.int64)
    merged[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1).cumsum()
    corners = merged[faces]  # (F, 3)
    start, end = corners.ravel(), corners[:, [1, 2, 0]].ravel()
    low, high = np.minimum(start, end), np.maximum(start, end)
    _, edge = np.unique(low * len(vertices) + high, return_inverse=True)
    # A degenerate face has an edge from a vertex to itself, which adds 0.
    balance = np.bincount(edge, weights=np.sign(end - start))
    return int(np.count_nonzero(balance)), len(balance)
