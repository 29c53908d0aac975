"""Read head scans in any common format, in patient space.

DICOM folders, NRRD, NIfTI, InVesalius projects and NumPy arrays provide values; closed meshes
become masks. The packages that read them are optional. Never imports torch.
"""

from __future__ import annotations

import gzip
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from overt.data.skulls.invesalius import read_invesalius
from overt.data.skulls.meshes import MESHES, read_mesh
from overt.data.skulls.nrrd import read_nrrd
from overt.data.skulls.volumes import LPS_TO_RAS, Volume
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import check_file, check_unpacked, open_arrays
from overt.geometry.solid import solid_of_mesh

MESH_VOXEL_MM = 0.5
_MEDICAL = "pip install 'overt[medical]'"
FORMATS = (
    "a DICOM folder, .nrrd, .nii, .nii.gz, .inv3, .npz (array `values`, `spacing` or `affine`), "
    f".npy with --spacing, or a mesh ({', '.join(MESHES)})"
)


def read_scan(path: Path, spacing: tuple[float, float, float] | None = None) -> Volume:
    """Read a scan of any format; `spacing` in mm is for arrays that do not store theirs."""
    if not path.exists():
        raise DataError(f"no scan at {path}; check the path")
    name = path.name.lower()
    if path.is_dir():
        volume = read_dicom(path)
    elif name.endswith(".nrrd"):
        volume = read_nrrd(path)
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
    if volume.values.ndim != 3 or min(volume.values.shape) < 2:
        raise DataError(f"{path}: an array of shape {volume.values.shape}; expected three axes")
    return volume.check(str(path))


def read_nifti(path: Path) -> Volume:
    """Read a NIfTI volume; its RAS is converted to LPS."""
    try:
        import nibabel
    except ImportError as error:
        raise DataError(f"NIfTI is read by nibabel, which is not installed; {_MEDICAL}") from error
    try:
        check_file(path)
        image: Any = nibabel.load(path)
        check_unpacked(math.prod(image.shape) * image.get_data_dtype().itemsize, path)
        values = np.asanyarray(image.dataobj)
        affine = LPS_TO_RAS @ np.asarray(image.affine, dtype=np.float64)
    except DataError:
        raise
    except Exception as error:  # nibabel stops with almost any error on a damaged file
        raise DataError(f"{path} cannot be read as NIfTI ({error})") from error
    return Volume(values.reshape(values.shape[:3]) if values.size else values, affine)


def write_nifti(path: Path, volume: Volume) -> None:
    """Write a mask as NIfTI; LPS becomes RAS."""
    try:
        import nibabel
    except ImportError as error:
        raise DataError(
            f"NIfTI is written by nibabel, which is not installed; {_MEDICAL}"
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
        return Volume.of(content, spacing)
    with content:
        if "values" not in content or not {"spacing", "affine"} & set(content.files):
            raise DataError(
                f"{path} holds {', '.join(content.files) or 'nothing'}; expected `values` and "
                "`spacing` (3 numbers, mm) or `affine` (4 x 4, voxel indices to LPS in mm)"
            )
        if "affine" in content:
            return Volume(content["values"], np.asarray(content["affine"], dtype=np.float64))
        x, y, z = (float(step) for step in content["spacing"])
        return Volume.of(content["values"], (x, y, z))


def volume_of_mesh(path: Path) -> Volume:
    """Return a closed mesh in LPS and mm as a mask with voxels of half a millimeter."""
    vertices, faces = read_mesh(path)
    # Offset by a quarter voxel, so that axis-aligned faces do not pass through voxel centers.
    low, high = vertices.min(axis=0) - 4.5 * MESH_VOXEL_MM, vertices.max(axis=0) + 2
    size = high - low
    if not np.isfinite(size).all() or size.max() > 1000:
        raise DataError(
            f"{path}: the mesh measures {size.tolist()}; expected a head in millimeters"
        )
    shape = tuple(int(count) for count in np.ceil(size / MESH_VOXEL_MM))
    affine = np.diag([MESH_VOXEL_MM] * 3 + [1.0])
    affine[:3, 3] = low
    mask = solid_of_mesh((vertices - low) / MESH_VOXEL_MM, faces, shape)
    if not mask.any():
        raise DataError(f"{path}: the mesh encloses no volume; expected a closed surface")
    return Volume(mask, affine)


def read_dicom(folder: Path) -> Volume:
    """Read the largest series of a folder, in Hounsfield units if its headers define them."""
    try:
        import pydicom
    except ImportError as error:
        raise DataError(f"DICOM is read by pydicom, which is not installed; {_MEDICAL}") from error
    series: dict[str, list[Any]] = {}
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        try:
            header = pydicom.dcmread(path, stop_before_pixels=True)
            series.setdefault(str(header.SeriesInstanceUID), []).append((path, header))
            _ = header.ImagePositionPatient, header.ImageOrientationPatient, header.PixelSpacing
        except Exception:  # not DICOM, or an image without a place, such as a scout
            continue
    slices = max(series.values(), key=len, default=[])
    if len(slices) < 2:
        raise DataError(
            f"{folder} holds no series of DICOM images with a position in space; expected two "
            "slices or more, each a file"
        )
    return stack_slices([pydicom.dcmread(path) for path, _ in slices], folder)


def stack_slices(slices: list[Any], folder: Path) -> Volume:
    """Stack DICOM images of one series in the order of their positions."""
    try:
        rows, columns = np.array(slices[0].ImageOrientationPatient, dtype=float).reshape(2, 3)
        normal = np.cross(rows, columns)
        positions = np.array([item.ImagePositionPatient for item in slices], dtype=float)
        order = np.argsort(positions @ normal)
        heights = (positions @ normal)[order]
        steps = np.diff(heights)
        step = float(np.median(steps))
        if step <= 0 or np.abs(steps - step).max() > 0.1 * step:
            raise DataError(
                f"{folder}: slices are {steps.min():g} to {steps.max():g} mm apart; expected one "
                "distance. A slice is missing or duplicated."
            )
        between_rows, between_columns = (float(x) for x in slices[0].PixelSpacing)
        layers = []
        for index in order:
            item = slices[int(index)]
            factor = float(getattr(item, "RescaleSlope", 1))
            offset = float(getattr(item, "RescaleIntercept", 0))
            layers.append(item.pixel_array.T.astype(np.float32) * factor + offset)
        values = np.stack(layers, axis=2)  # (column, row, slice)
    except DataError:
        raise
    except Exception as error:  # pydicom stops with almost any error on a damaged file
        raise DataError(f"{folder}: its DICOM images cannot be read ({error})") from error
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = rows * between_columns, columns * between_rows
    affine[:3, 2] = (positions[order[-1]] - positions[order[0]]) / (len(slices) - 1)
    affine[:3, 3] = positions[order[0]]
    is_integral = np.array_equal(values, np.round(values)) and np.abs(values).max() < 2**15
    return Volume(values.astype(np.int16) if is_integral else values, affine)
