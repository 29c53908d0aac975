"""overt/data/skulls/nrrd.py: NRRD files and the patient space they say they are in."""

import gzip
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
        ("type: block\nsizes: 2 2 2\nencoding: raw", b"1234", "type 'block'; allowed: int8, uint8"),
        ("sizes: 2 2 2\nencoding: raw", b"1234", "lacks the field 'type'"),
        ("type: uint8\nsizes: 2 2 x\nencoding: raw", b"1234", "expected three integers"),
        (f"type: uint8\nsizes: 2 2 {10**400}\nencoding: gz", b"1234", "expected three integers"),
        ("type: short\nsizes: 1 1 1\nencoding: raw\nendian: x", b"12", "allowed: little and big"),
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


UNITS = (
    "type: uint8\nsizes: 1 1 1\nencoding: raw\nspace: left-posterior-superior\n"
    "space directions: (0.5,0,0) (0,0.5,0) (0,0,0.5)\nspace origin: (1,2,3)\nspace units: "
)


@pytest.mark.parametrize(
    ("unit", "scale"), [("mm", 1), ("", 1), ("cm", 10), ("m", 1000), ("um", 1e-3)]
)
def test_units_of_length_are_read(unit: str, scale: float, tmp_path: Path) -> None:
    units = " ".join([f'"{unit}"'] * 3)
    found = nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", UNITS + units, b"1"))
    np.testing.assert_allclose(found.spacing, [0.5 * scale] * 3)
    np.testing.assert_allclose(found.affine[:3, 3], np.array([1, 2, 3]) * scale)


@pytest.mark.parametrize("units", ['"in" "in" "in"', '"mm" "mm"', '"mm" "mm" "s"'])
def test_other_units_are_refused(units: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"space units {units}; allowed: three of mm, m, cm, um"):
        nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", UNITS + units, b"1"))


SKIPPED_TO = bytes(range(8))


def test_damaged_values_are_refused(tmp_path: Path) -> None:
    header = "type: uint8\nsizes: 10 10 10\nencoding: gzip"
    packed = bytearray(gzip.compress(np.random.default_rng(0).bytes(1000), 0))  # stored as it is
    packed[500] ^= 0x55
    with pytest.raises(DataError, match=r"cannot be unpacked \(CRC check failed\); get it again"):
        nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, bytes(packed)))
    with pytest.raises(DataError, match="the file is truncated"):
        nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, bytes(packed[:-5])))


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ("encoding: raw\nbyte skip: -1", b"any number of bytes" + SKIPPED_TO),
        ("encoding: raw\nbyteskip: 3", b"abc" + SKIPPED_TO + b"rest"),
        ("encoding: raw\nline skip: 2\nbyte skip: 1", b"a\nbb\nc" + SKIPPED_TO),
        ("encoding: gz\nlineskip: 1\nbyte skip: 2", b"a\n" + gzip.compress(b"ab" + SKIPPED_TO)),
    ],
    ids=["last bytes", "bytes", "lines and bytes", "gzip"],
)
def test_lines_and_bytes_before_the_values_are_skipped(
    fields: str, body: bytes, tmp_path: Path
) -> None:
    path = write_raw(tmp_path / "x.nrrd", f"type: uint8\nsizes: 2 2 2\n{fields}", body)
    assert nrrd.read_nrrd(path).values.ravel(order="F").tolist() == list(SKIPPED_TO)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("encoding: gzip\nbyte skip: -1", "byte skip -1 of gzip values; expected 0 or more"),
        ("encoding: raw\nbyte skip: -2", "byte skip -2 of raw values"),
        ("encoding: raw\nline skip: -1", "line skip -1"),
        ("encoding: raw\nline skip: x", "line skip: 'x' in its header; expected an integer"),
        ("encoding: raw\nline skip: 1000000", "0 bytes of values, expected 8"),
        ("encoding: raw\nbyte skip: 5", "3 bytes of values, expected 8"),
    ],
)
def test_other_skips_are_refused(fields: str, message: str, tmp_path: Path) -> None:
    header = f"type: uint8\nsizes: 2 2 2\n{fields}"
    with pytest.raises(DataError, match=message):
        nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, bytes(8)))


def test_headers_with_other_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.nrrd"
    path.write_bytes(b"NRRD0004\r\ntype: uint8\r\nsizes: 1 1 2\r\nencoding: raw\r\n\r\n\n\n")
    assert nrrd.read_nrrd(path).values.tolist() == [[[10, 10]]]
    path.write_bytes(b"NRRD0004\ntype: uint8\nsizes: 1 1 2\nencoding: raw\ndata file: x.raw\n")
    with pytest.raises(DataError, match="in another file"):
        nrrd.read_nrrd(path)


@pytest.mark.parametrize("name", ["int64", "signed short", "uint", "unsigned long long int"])
def test_all_integer_types_of_the_format_are_read(name: str, tmp_path: Path) -> None:
    kind = {"int64": "<i8", "signed short": "<i2", "uint": "<u4"}.get(name, "<u8")
    header = f"type: {name}\nsizes: 1 1 2\nencoding: raw\nendian: Little"
    body = np.array([1, 300], kind).tobytes()
    found = nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, body))
    assert found.values.dtype == kind
    assert found.values.ravel().tolist() == [1, 300]


def test_metadata_of_the_same_name_as_a_field_is_ignored(tmp_path: Path) -> None:
    header = "type: uint8\nsizes: 1 1 1\nencoding: raw\nsizes:=9 9 9"
    assert nrrd.read_nrrd(write_raw(tmp_path / "x.nrrd", header, b"1")).values.shape == (1, 1, 1)
