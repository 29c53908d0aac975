"""overt/data/skulls/nrrd.py: NRRD files and the patient space they say they are in."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import nrrd
from overt.data.skulls.volumes import LPS_TO_RAS, Volume
from overt.errors import DataError


def write_raw(path: Path, header: str, body: bytes) -> Path:
    path.write_bytes(f"NRRD0004\n# a comment\n{header}\n\n".encode() + body)
    return path


def test_a_volume_comes_back_as_it_was_written(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((5, 4, 3)) > 0.5
    path = tmp_path / "a" / "000.nrrd"
    nrrd.write_nrrd(path, Volume.of(values, (0.4, 1 / 3, 2.0)))
    found = nrrd.read_nrrd(path)
    np.testing.assert_array_equal(found.mask, values)
    assert found.spacing == (0.4, 1 / 3, 2.0)
    assert [file.name for file in path.parent.iterdir()] == ["000.nrrd"]


def test_other_types_byte_orders_and_spacings_are_read(tmp_path: Path) -> None:
    values = np.arange(24, dtype=">i2").reshape(2, 3, 4)
    path = write_raw(
        tmp_path / "x.nrrd",
        "type: short\ndimension: 3\nsizes: 2 3 4\nendian: big\nencoding: raw\nspacings: 1 2 3",
        values.tobytes(order="F"),
    )
    found = nrrd.read_nrrd(path)
    np.testing.assert_array_equal(found.values, values)
    assert found.spacing == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        ("type: uint8\nsizes: 2 2\nencoding: raw", b"1234", r"shape \(2, 2\); expected three"),
        ("type: uint8\nsizes: 2 2 2\nencoding: raw", b"1234", "4 bytes of values, expected 8"),
        ("type: uint8\nsizes: 2 2 2\nencoding: gzip", b"1234", "cannot be unpacked"),
        ("type: uint8\nsizes: 2 2 2\nencoding: hex", b"1234", "allowed: raw and gzip"),
        ("type: block\nsizes: 2 2 2\nencoding: raw", b"1234", "lacks or misstates 'block'"),
        ("sizes: 2 2 2\nencoding: raw", b"1234", "lacks or misstates 'type'"),
        ("type: uint8\nsizes: 2 2 2\nencoding: raw\ndata file: x.raw", b"", "in another file"),
        (
            "type: uint8\nsizes: 1 1 1\nencoding: raw\nspace directions: (a,b)",
            b"1",
            "its voxel size",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    header: str, body: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, body))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.nrrd").write_bytes(b"PNG")
    with pytest.raises(DataError, match="not an NRRD file"):
        nrrd.read_nrrd(tmp_path / "x.nrrd")
    with pytest.raises(DataError, match="cannot be read"):
        nrrd.read_nrrd(tmp_path / "absent.nrrd")


OBLIQUE = np.array(
    [[0.0, 0.48, 0.36, -12.5], [0.5, 0.0, 0.0, 30.25], [0.0, 0.36, -0.48, -7.0], [0, 0, 0, 1]]
)


def test_the_place_of_a_volume_comes_back(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4) - 12
    nrrd.write_nrrd(tmp_path / "x.nrrd", Volume(values, OBLIQUE))
    found = nrrd.read_nrrd(tmp_path / "x.nrrd")
    np.testing.assert_array_equal(found.affine, OBLIQUE)
    np.testing.assert_array_equal(found.values, values)
    assert found.spacing == pytest.approx((0.5, 0.6, 0.6))


def test_a_file_in_ras_is_the_same_patient(tmp_path: Path) -> None:
    header = (
        "type: uint8\nsizes: 1 1 1\nencoding: raw\nspace: right-anterior-superior\n"
        "space directions: (-1,0,0) (0,-2,0) (0,0,3)\nspace origin: (10,20,30)"
    )
    found = nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, b"1"))
    expected = np.diag([1.0, 2.0, 3.0, 1.0])
    expected[:3, 3] = [-10, -20, 30]
    np.testing.assert_array_equal(found.affine, expected)
    np.testing.assert_array_equal(LPS_TO_RAS @ LPS_TO_RAS, np.eye(4))


def test_other_spaces_are_refused(tmp_path: Path) -> None:
    header = "type: uint8\nsizes: 1 1 1\nencoding: raw\nspace: scanner-xyz"
    with pytest.raises(DataError, match="space scanner-xyz; allowed: left-posterior-superior"):
        nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, b"1"))
