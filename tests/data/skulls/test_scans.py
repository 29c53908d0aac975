"""overt/data/skulls/scans.py: the same patient from every format."""

import gzip
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

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


@pytest.mark.parametrize(("unit", "scale"), [("meter", 1e-3), ("micron", 1e3), ("mm", 1)])
def test_nifti_units_are_converted_to_mm(unit: str, scale: float, tmp_path: Path) -> None:
    affine = np.diag([scale, scale, scale, 1]) @ LPS_TO_RAS @ OBLIQUE
    image = nibabel.Nifti1Image(VALUES, affine)
    image.header.set_xyzt_units(unit, "sec")
    nibabel.save(image, tmp_path / "x.nii")
    np.testing.assert_allclose(scans.read_scan(tmp_path / "x.nii").affine, OBLIQUE, rtol=1e-5)


def test_a_nifti_without_orientation_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, affine in (("known.nii", OBLIQUE), ("unknown.nii", None)):
        nibabel.save(nibabel.Nifti1Image(VALUES, affine), tmp_path / name)
        scans.read_scan(tmp_path / name)
    assert [record.args[0].name for record in caplog.records] == ["unknown.nii"]
    assert "neither a qform nor an sform" in caplog.text


def test_an_nrrd_without_a_space_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.nrrd"
    write_nrrd(path, Volume(VALUES, OBLIQUE))
    scans.read_scan(path)
    assert not caplog.text
    named, unnamed = b"space: left-posterior-superior", b"space dimension: 3"
    path.write_bytes(path.read_bytes().replace(named, unnamed))
    np.testing.assert_allclose(scans.read_scan(path).affine, OBLIQUE, atol=1e-6)
    assert "taken for left, posterior, superior" in caplog.text


def test_a_nifti_with_two_affines_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    image = nibabel.Nifti1Image(VALUES, np.diag([1.0, 1.0, 2.0, 1.0]))
    image.set_sform(image.affine, 1)
    image.set_qform(image.affine, 1)
    nibabel.save(image, tmp_path / "x.nii")
    scans.read_scan(tmp_path / "x.nii")
    assert not caplog.text
    image.set_qform(np.diag([-1.0, 1.0, 2.0, 1.0]), 1)
    nibabel.save(image, tmp_path / "x.nii")
    np.testing.assert_allclose(
        scans.read_scan(tmp_path / "x.nii").affine, LPS_TO_RAS @ image.get_sform(), atol=1e-5
    )
    assert "place voxels up to 6 mm apart; the sform is used" in caplog.text
    caplog.clear()
    image.header["quatern_b"] = image.header["quatern_c"] = 0.9  # no rotation
    nibabel.save(image, tmp_path / "x.nii")
    np.testing.assert_array_equal(scans.read_scan(tmp_path / "x.nii").values, VALUES)
    assert not caplog.text


def test_nifti_with_several_volumes_or_one_slice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.nii"
    nibabel.save(nibabel.Nifti1Image(np.stack([VALUES] * 2, axis=3), np.eye(4)), path)
    with pytest.raises(DataError, match=r"shape \(4, 5, 6, 2\); expected three axes"):
        scans.read_scan(path)
    nibabel.save(nibabel.Nifti1Image(VALUES[..., None], np.eye(4)), path)
    assert scans.read_scan(path).values.shape == VALUES.shape
    nibabel.save(nibabel.Nifti1Image(VALUES[..., :1], np.eye(4)), path)
    with pytest.raises(DataError, match=r"shape \(4, 5, 1\); expected at least two slices"):
        scans.read_scan(path)


def test_a_damaged_compressed_nifti_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.nii.gz"
    image = nibabel.Nifti1Image(np.zeros((64, 64, 64), dtype=np.int16), np.eye(4))
    packed = bytearray(gzip.compress(image.to_bytes(), 0))
    packed[-200_000] ^= 0x55
    path.write_bytes(packed)
    with pytest.raises(DataError, match="CRC check failed"):
        scans.read_scan(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"spacing": [1, 2]}, r"`spacing` has the shape \(2,\).*expected real.* \(3,\)"),
        ({"spacing": 2.0}, r"`spacing` has the shape \(\)"),
        ({"spacing": ["a", "b", "c"]}, r"`spacing`.* type <U1"),
        ({"spacing": [-1, 1, 1]}, "-1 x 1 x 1; expected three sizes above 0"),
        ({"affine": np.eye(3)}, r"`affine` has the shape \(3, 3\).*expected real.* \(4, 4\)"),
        ({"affine": np.full((4, 4), "x")}, r"`affine`.* type <U1"),
        ({"values": np.array([{}]), "spacing": [1, 1, 1]}, "`values` cannot be read"),
    ],
)
def test_arrays_of_other_shapes_and_types_are_refused(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", **({"values": VALUES} | arrays))
    with pytest.raises(DataError, match=message):
        scans.read_scan(tmp_path / "x.npz")


def test_a_damaged_archive_of_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, values=VALUES, spacing=[1, 1, 1])
    path.write_bytes(path.read_bytes().replace(VALUES.tobytes()[:20], bytes(20)))
    with pytest.raises(DataError, match=r"`values` cannot be read \(Bad CRC-32"):
        scans.read_scan(path)


@pytest.mark.parametrize("steps", [(1000, 1000, 1000), (1, 1, 25), (1e-3, 1e-3, 1e-3)])
def test_a_spacing_that_is_not_in_mm_is_refused(
    steps: tuple[float, float, float], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    with pytest.raises(DataError, match=r"an extent of .* to 2000 mm\. Save the scan"):
        scans.read_scan(tmp_path / "x.npy", steps)


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


def cube() -> tuple[np.ndarray, np.ndarray]:
    mask = np.zeros((20, 20, 20), dtype=bool)
    mask[5:15, 5:15, 5:15] = True
    return mask_surface(mask)


def test_an_open_mesh_is_refused(tmp_path: Path) -> None:
    vertices, faces = cube()
    write_stl(tmp_path / "x.stl", vertices, faces[1:])
    edges = len(faces) * 3 // 2
    with pytest.raises(DataError, match=f"3 of {edges} edges of the mesh are open.*closed mesh"):
        scans.read_scan(tmp_path / "x.stl")


def test_open_edges_are_counted_whatever_vertices_are_repeated() -> None:
    vertices, faces = cube()
    soup, numbers = vertices[faces].reshape(-1, 3), np.arange(faces.size).reshape(-1, 3)
    assert scans.count_open_edges(soup, numbers) == (0, len(faces) * 3 // 2)
    assert scans.count_open_edges(soup, numbers[2:])[0] > 0
    numbers[0] = numbers[0, ::-1]  # a face that looks inward
    assert scans.count_open_edges(soup, numbers)[0] == 3
    # A face without area, and the same surface twice, do not open a mesh.
    assert scans.count_open_edges(vertices, np.vstack([faces, [[0, 0, 1]]]))[0] == 0
    both = np.vstack([faces, faces])
    assert scans.count_open_edges(vertices, both)[0] == 0


def test_a_mesh_whose_normals_point_inward_is_reversed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vertices, faces = cube()
    write_stl(tmp_path / "x.stl", vertices, faces)
    expected = scans.read_scan(tmp_path / "x.stl")
    assert not caplog.text
    write_stl(tmp_path / "x.stl", vertices, faces[:, ::-1])
    np.testing.assert_array_equal(scans.read_scan(tmp_path / "x.stl").values, expected.values)
    assert "normals of the mesh point inward; they are reversed" in caplog.text


def test_a_mesh_in_meters_is_refused(tmp_path: Path) -> None:
    vertices, faces = cube()
    write_stl(tmp_path / "x.stl", vertices / 1000, faces)
    with pytest.raises(DataError, match=r"measures 0\.01\S* x .* mm; meshes are in mm.*by 1000"):
        scans.read_scan(tmp_path / "x.stl")


def test_a_mesh_becomes_a_mask_where_it_was(tmp_path: Path) -> None:
    vertices, faces = cube()
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
