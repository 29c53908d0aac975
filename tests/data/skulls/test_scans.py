"""overt/data/skulls/scans.py: the same patient from every format."""

from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from overt.data.skulls import scans
from overt.data.skulls.meshes import write_stl
from overt.data.skulls.nrrd import read_nrrd, write_nrrd
from overt.data.skulls.volumes import LPS_TO_RAS, Volume
from overt.errors import DataError
from overt.geometry.isosurface import enclosed_volume, mask_surface

OBLIQUE = np.array(
    [[0.0, 0.48, 0.36, -12.5], [-0.5, 0.0, 0.0, 30.25], [0.0, 0.36, -0.48, -7.0], [0, 0, 0, 1]]
)
VALUES = np.random.default_rng(0).integers(-1000, 1500, (4, 5, 6)).astype(np.int16)


def test_nrrd_and_nifti_are_the_same_patient(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(VALUES, LPS_TO_RAS @ OBLIQUE), tmp_path / "x.nii.gz")
    write_nrrd(tmp_path / "x.nrrd", Volume(VALUES, OBLIQUE))
    for name in ("x.nii.gz", "x.nrrd"):
        volume = scans.read_scan(tmp_path / name)
        np.testing.assert_allclose(volume.affine, OBLIQUE, atol=1e-6)
        np.testing.assert_array_equal(volume.values, VALUES)
    mask = Volume(VALUES > 0, OBLIQUE)
    scans.write_nifti(tmp_path / "mask.nii", mask)
    back = scans.read_scan(tmp_path / "mask.nii")
    np.testing.assert_allclose(back.affine, OBLIQUE, atol=1e-6)
    np.testing.assert_array_equal(back.mask, mask.values)


def write_slice(path: Path, series: str, height: int, affine: np.ndarray) -> None:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, generate_uid()
    file.SeriesInstanceUID = series
    columns, rows, step = affine[:3, :3].T
    file.PixelSpacing = [float(np.linalg.norm(rows)), float(np.linalg.norm(columns))]
    orientation = [*(columns / np.linalg.norm(columns)), *(rows / np.linalg.norm(rows))]
    file.ImageOrientationPatient = [round(float(x), 8) for x in orientation]
    file.ImagePositionPatient = [float(x) for x in affine[:3, 3] + height * step]
    file.RescaleSlope, file.RescaleIntercept = 1, -1024
    file.Rows, file.Columns = VALUES.shape[1], VALUES.shape[0]
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 0
    file.PixelData = (VALUES[:, :, height].T + 1024).astype("<u2").tobytes()
    file.save_as(path, enforce_file_format=True)


def test_a_dicom_folder_is_stacked_by_position(tmp_path: Path) -> None:
    affine = OBLIQUE.copy()
    affine[:3, 2] = np.cross(affine[:3, 0], affine[:3, 1]) / 0.3 * 1.5  # along the normal, 1.5 mm
    series = generate_uid()
    for name, height in zip("ebacfd", range(6), strict=True):
        write_slice(tmp_path / f"{name}.dcm", series, height, affine)
    write_slice(tmp_path / "scout.dcm", generate_uid(), 0, affine)
    (tmp_path / "README").write_text("no image")
    volume = scans.read_scan(tmp_path)
    np.testing.assert_allclose(volume.affine, affine, atol=1e-5)
    np.testing.assert_array_equal(volume.values, VALUES)
    (tmp_path / "a.dcm").unlink()
    with pytest.raises(DataError, match="expected one distance"):
        scans.read_scan(tmp_path)


def test_arrays_need_a_spacing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    with pytest.raises(DataError, match="--spacing X Y Z"):
        scans.read_scan(tmp_path / "x.npy")
    assert scans.read_scan(tmp_path / "x.npy", (1.0, 2.0, 3.0)).spacing == (1.0, 2.0, 3.0)
    np.savez(tmp_path / "x.npz", values=VALUES, affine=OBLIQUE)
    np.testing.assert_array_equal(scans.read_scan(tmp_path / "x.npz").affine, OBLIQUE)
    np.savez(tmp_path / "y.npz", pixels=VALUES)
    with pytest.raises(DataError, match="holds pixels; expected `values`"):
        scans.read_scan(tmp_path / "y.npz")


def test_a_mesh_becomes_a_mask_where_it_was(tmp_path: Path) -> None:
    mask = np.zeros((20, 20, 20), dtype=bool)
    mask[5:15, 5:15, 5:15] = True
    vertices, faces = mask_surface(mask)
    write_stl(tmp_path / "x.stl", vertices + np.array([100, -50, 30]), faces)
    volume = scans.read_scan(tmp_path / "x.stl")
    inside = volume.to_patient(np.argwhere(volume.values))
    np.testing.assert_allclose(inside.mean(axis=0), [109.5, -40.5, 39.5], atol=0.2)
    assert volume.values.sum() * scans.MESH_VOXEL_MM**3 == pytest.approx(
        enclosed_volume(vertices, faces), rel=0.04
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.nrrd", None, "no scan"),
        ("x.txt", b"", "expected a DICOM folder"),
        ("x.nii", b"junk", "cannot be read as NIfTI"),
        ("x.npz", b"junk", "cannot be read as a NumPy file"),
    ],
)
def test_other_files_are_refused(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        scans.read_scan(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no series of DICOM images"):
        scans.read_scan(tmp_path / "empty")


def test_what_is_written_as_nrrd_keeps_the_scan_s_place(tmp_path: Path) -> None:
    scan = Volume(VALUES, OBLIQUE)
    write_nrrd(tmp_path / "implant.nrrd", scan.with_values(VALUES > 0))
    np.testing.assert_array_equal(read_nrrd(tmp_path / "implant.nrrd").affine, OBLIQUE)
