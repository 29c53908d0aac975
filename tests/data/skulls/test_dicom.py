"""Folders of DICOM images: what is stacked, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import EnhancedCTImageStorage, ExplicitVRLittleEndian, generate_uid

from overt.data.skulls import scans
from overt.errors import DataError

OBLIQUE = np.array(
    [[0.0, 0.48, 0.36, -12.5], [-0.5, 0.0, 0.0, 30.25], [0.0, 0.36, -0.48, -7.0], [0, 0, 0, 1]]
)
VALUES = np.random.default_rng(0).integers(-1000, 1500, (4, 5, 6)).astype(np.int16)


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


def test_a_damaged_or_single_dicom_image_is_named(tmp_path: Path) -> None:
    series = generate_uid()
    for height in range(6):
        write_slice(tmp_path / f"{height}", series, height, OBLIQUE)
    with pytest.raises(DataError, match=r"4 is not a readable scan; .* give its folder"):
        scans.read_scan(tmp_path / "4")
    path = tmp_path / "4"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="4: its pixels cannot be read"):
        scans.read_scan(tmp_path)
    write_slice(path, series, 4, OBLIQUE)
    packed = pydicom.dcmread(path)
    packed.compress(pydicom.uid.RLELossless)
    packed.save_as(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="4: this DICOM image cannot be read"):
        scans.read_scan(tmp_path)


def test_a_tilted_gantry_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Slices are shifted against each other, so distances along voxels are not those in mm."""
    tilted = np.diag([0.5, 0.5, 1.5, 1.0])
    tilted[1, 2] = 1.5 * np.tan(np.radians(20))
    series = generate_uid()
    for height in range(6):
        write_slice(tmp_path / f"x{height}", series, height, tilted)
    np.testing.assert_allclose(scans.read_scan(tmp_path).affine, tilted, atol=1e-5)
    assert "70.0 degrees between two axes of its voxels" in caplog.text
    assert "up to 19 % off" in caplog.text
    caplog.clear()
    np.savez(tmp_path / "x.npz", values=VALUES, affine=OBLIQUE)
    scans.read_scan(tmp_path / "x.npz")
    assert not caplog.text


ALONG = np.diag([0.5, 0.5, 1.5, 1.0])


def rewrite(path: Path, **changes: Any) -> None:
    """Change elements of a DICOM file; None deletes one."""
    file = pydicom.dcmread(path)
    for name, value in changes.items():
        if value is None:
            delattr(file, name)
        else:
            setattr(file, name, value)
    file.save_as(path)


def test_images_without_a_position_or_with_another_orientation_are_skipped(tmp_path: Path) -> None:
    series = generate_uid()
    for height in range(6):
        write_slice(tmp_path / f"x{height}", series, height, ALONG)
    for number in range(9):  # more of them than slices
        write_slice(tmp_path / f"a{number}", series, 0, ALONG)
        rewrite(tmp_path / f"a{number}", ImagePositionPatient=None)
    write_slice(tmp_path / "b", series, 0, ALONG)
    rewrite(tmp_path / "b", ImageOrientationPatient=[0, 1, 0, 0, 0, 1])
    write_slice(tmp_path / "c", series, 0, ALONG)
    rewrite(tmp_path / "c", ImagePositionPatient="")
    np.testing.assert_array_equal(scans.read_scan(tmp_path).values, VALUES)


def test_of_series_of_the_same_size_the_one_that_is_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, number in (("soft", 4), ("bone", 5)):
        series = generate_uid()
        for height in range(3):
            write_slice(tmp_path / f"{name}{height}", series, height, ALONG)
            rewrite(tmp_path / f"{name}{height}", SeriesNumber=number, SeriesDescription=name)
    scans.read_scan(tmp_path)
    assert "2 series of 3 slices each; reading series 5 (bone), not series 4 (soft)" in caplog.text
    (tmp_path / "soft0").unlink()
    caplog.clear()
    scans.read_scan(tmp_path)
    assert not caplog.text


# --- series that are not a regular stack ----------------------------------------------------------


def write_series(folder: Path, affine: np.ndarray = ALONG) -> list[Path]:
    series = generate_uid()
    paths = [folder / f"x{height}" for height in range(6)]
    for height, path in enumerate(paths):
        write_slice(path, series, height, affine)
    return paths


def test_copies_of_an_image_are_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = write_series(tmp_path)
    (tmp_path / "copy of x2").write_bytes(paths[2].read_bytes())
    np.testing.assert_array_equal(scans.read_scan(tmp_path).values, VALUES)
    assert "1 of 7 DICOM images are copies" in caplog.text
    for path in paths[:2] + paths[3:]:
        path.unlink()
    with pytest.raises(DataError, match="expected two slices or more"):
        scans.read_scan(tmp_path)


def test_a_gap_is_named_with_the_slices_beside_it(tmp_path: Path) -> None:
    write_series(tmp_path)[2].unlink()
    with pytest.raises(DataError, match=r"see x1 and x3, 3 mm apart"):
        scans.read_scan(tmp_path)


def test_slices_on_other_grids_are_refused(tmp_path: Path) -> None:
    """Two reconstructions with one UID, which were stacked as if they were one."""
    paths = write_series(tmp_path)
    rewrite(paths[4], PixelSpacing=[0.25, 0.25])
    with pytest.raises(DataError, match=r"x0 has 4 x 5 pixels of 0\.5 x 0\.5 mm, but x4 has"):
        scans.read_scan(tmp_path)
    rewrite(paths[4], PixelSpacing=[0.5, 0.5], Rows=4, PixelData=bytes(32))
    with pytest.raises(DataError, match=r"but x4 has 4 x 4 pixels"):
        scans.read_scan(tmp_path)


def test_colors_among_slices_are_named(tmp_path: Path) -> None:
    colored = write_series(tmp_path)[3]
    rewrite(colored, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    rewrite(colored, BitsAllocated=8, BitsStored=8, HighBit=7, PixelData=bytes(60))
    with pytest.raises(DataError, match=r"x3: its pixels cannot be read \(colors; expected one"):
        scans.read_scan(tmp_path)


def test_slices_that_are_not_on_one_line_are_refused(tmp_path: Path) -> None:
    paths = write_series(tmp_path)
    for path in paths[3:]:
        x, y, z = pydicom.dcmread(path).ImagePositionPatient
        rewrite(path, ImagePositionPatient=[x + 2, y, z])
    with pytest.raises(DataError, match=r"shifted against each other, x\d by .* within its plane"):
        scans.read_scan(tmp_path)


def test_an_empty_rescale_is_none(tmp_path: Path) -> None:
    """As anonymizers leave it."""
    for path in write_series(tmp_path):
        rewrite(path, RescaleSlope="", RescaleIntercept="")
    np.testing.assert_array_equal(scans.read_scan(tmp_path).values, VALUES + 1024)


def test_a_compression_without_its_decoder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(image: Dataset) -> None:
        raise RuntimeError("Unable to decompress:\n\tgdcm - missing dependencies")

    write_series(tmp_path)
    monkeypatch.setattr(Dataset, "pixel_array", property(decode))
    with pytest.raises(DataError, match=r"decompress: gdcm .*; pip install 'pylibjpeg\[all\]'"):
        scans.read_scan(tmp_path)


@pytest.mark.parametrize("written", [63536, -2000])
def test_padding_is_not_bone(written: int, tmp_path: Path) -> None:
    """Beyond the field of view; as large numbers, four corners were the largest component."""
    for height, path in enumerate(write_series(tmp_path)):
        stored = (VALUES[:, :, height].T + 1024).astype("<u2")
        stored[0] = 63536
        rewrite(path, PixelData=stored.tobytes(), BitsStored=16)
        file = pydicom.dcmread(path)
        file.add_new("PixelPaddingValue", "US" if written > 0 else "SS", written)
        file.save_as(path)
    values = scans.read_scan(tmp_path).values
    np.testing.assert_array_equal(values[:, 1:], VALUES[:, 1:])
    assert (values[:, 0] == VALUES[:, 1:].min()).all()


def write_enhanced(path: Path, affine: np.ndarray) -> None:
    """All slices in one file, as scanners of a newer kind write them."""
    write_slice(path, generate_uid(), 0, affine)
    file = pydicom.dcmread(path)

    def group(**elements: Any) -> list[Dataset]:
        item = Dataset()
        for name, value in elements.items():
            setattr(item, name, value)
        return [item]

    shared = Dataset()
    shared.PixelMeasuresSequence = group(PixelSpacing=file.PixelSpacing)
    shared.PlaneOrientationSequence = group(ImageOrientationPatient=file.ImageOrientationPatient)
    shared.PixelValueTransformationSequence = group(RescaleSlope=1, RescaleIntercept=-1024)
    frames, order = [], [3, 0, 5, 1, 4, 2]
    for height in order:
        frame = Dataset()
        position = [float(x) for x in affine[:3, 3] + height * affine[:3, 2]]
        frame.PlanePositionSequence = group(ImagePositionPatient=position)
        frames.append(frame)
    file.SharedFunctionalGroupsSequence = [shared]
    file.PerFrameFunctionalGroupsSequence = frames
    for name in (
        "PixelSpacing", "ImageOrientationPatient", "ImagePositionPatient", "RescaleSlope",
        "RescaleIntercept",
    ):  # fmt: skip
        delattr(file, name)
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
    file.NumberOfFrames = len(order)
    stored = np.stack([VALUES[:, :, height].T for height in order]) + 1024
    file.PixelData = stored.astype("<u2").tobytes()
    file.save_as(path)


def test_a_multi_frame_image_is_a_series(tmp_path: Path) -> None:
    path = tmp_path / "scan" / "enhanced"
    path.parent.mkdir()
    write_enhanced(path, ALONG)
    write_slice(path.with_name("scout"), generate_uid(), 0, ALONG)
    for source in (path, path.parent):
        volume = scans.read_scan(source)
        np.testing.assert_array_equal(volume.values, VALUES)
        np.testing.assert_allclose(volume.affine, ALONG, atol=1e-5)


def test_segmentations_and_frames_without_a_position_are_no_slices(tmp_path: Path) -> None:
    write_series(tmp_path)
    write_enhanced(tmp_path / "mask", ALONG)
    rewrite(tmp_path / "mask", Modality="SEG")
    write_slice(tmp_path / "film", generate_uid(), 0, ALONG)
    rewrite(tmp_path / "film", NumberOfFrames=20)
    np.testing.assert_array_equal(scans.read_scan(tmp_path).values, VALUES)
