"""overt/data/skulls/volumes.py: NRRD files, and SkullFix brought to the shape of SkullBreak."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import volumes
from overt.errors import DataError


def write_raw(path: Path, header: str, body: bytes) -> Path:
    path.write_bytes(f"NRRD0004\n# a comment\n{header}\n\n".encode() + body)
    return path


def test_a_volume_comes_back_as_it_was_written(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((5, 4, 3)) > 0.5
    path = tmp_path / "a" / "000.nrrd"
    volumes.write_nrrd(path, volumes.Volume(values, (0.4, 1 / 3, 2.0)))
    found = volumes.read_nrrd(path)
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
    found = volumes.read_nrrd(path)
    np.testing.assert_array_equal(found.values, values)
    assert found.spacing == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        ("type: uint8\nsizes: 2 2\nencoding: raw", b"1234", r"shape \(2, 2\); expected are three"),
        ("type: uint8\nsizes: 2 2 2\nencoding: raw", b"1234", "4 bytes of values, 8 are due"),
        ("type: uint8\nsizes: 2 2 2\nencoding: gzip", b"1234", "cannot be unpacked"),
        ("type: uint8\nsizes: 2 2 2\nencoding: hex", b"1234", "allowed are raw and gzip"),
        ("type: block\nsizes: 2 2 2\nencoding: raw", b"1234", "lacks or misstates 'block'"),
        ("sizes: 2 2 2\nencoding: raw", b"1234", "lacks or misstates 'type'"),
        ("type: uint8\nsizes: 2 2 2\nencoding: raw\ndata file: x.raw", b"", "in another file"),
        ("type: uint8\nsizes: 1 1 1\nencoding: raw\nspace directions: (a,b)", b"1", "its voxels"),
    ],
)
def test_what_cannot_be_read_is_refused(
    header: str, body: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        volumes.read_nrrd(write_raw(tmp_path / "x.nrrd", header, body))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.nrrd").write_bytes(b"PNG")
    with pytest.raises(DataError, match="no NRRD file"):
        volumes.read_nrrd(tmp_path / "x.nrrd")
    with pytest.raises(DataError, match="cannot be read"):
        volumes.read_nrrd(tmp_path / "absent.nrrd")


def test_resampling_keeps_a_box_in_its_place() -> None:
    mask = np.zeros((10, 10, 10), dtype=bool)
    mask[2:8, 3:6, 4:9] = True
    same = volumes.resample(mask, (1.0, 1.0, 1.0))
    np.testing.assert_array_equal(same, mask)
    finer = volumes.resample(mask, (2.0, 1.0, 1.0))
    assert finer.shape == (20, 10, 10)
    assert abs(int(finer.sum()) - 2 * int(mask.sum())) <= 15  # one slab of 3 x 5


def test_skullfix_is_cropped_and_padded_to_512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "SIDE", 32)
    complete = np.zeros((20, 24, 18), dtype=np.uint8)
    complete[3:14, 5:20, 2:12] = 1
    implant = np.zeros_like(complete)
    implant[4:6, 6:9, 2:5] = 1
    spacing = (volumes.SKULLFIX_SPACING,) * 3
    frame = volumes.skullfix_frame(volumes.Volume(complete, spacing), Path("x"))
    whole = frame.apply(complete)
    assert whole.shape == (32, 32, 32)
    assert whole.sum() == complete.sum()
    # 11, 15 and 10 voxels: centred in x and y, the odd one after; in z all padding is at the end.
    assert whole[10:21, 8:23, 0:10].all()
    assert frame.apply(implant)[11:13, 9:12, 0:3].all()
    assert frame.apply(implant).sum() == implant.sum()


def test_skullfix_is_resampled_unless_its_spacing_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(volumes, "SIDE", 32)
    complete = np.ones((8, 8, 8), dtype=np.uint8)
    finer = volumes.skullfix_frame(volumes.Volume(complete, (0.9, 0.9, 0.9)), Path("x"))
    assert finer.zoom == (2.0, 2.0, 2.0)
    unknown = volumes.skullfix_frame(volumes.Volume(complete, (0.9, 0.9, 0.0)), Path("x"))
    assert unknown.zoom == (1.0, 1.0, 1.0)


def test_skullfix_volumes_that_cannot_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "SIDE", 4)
    full = volumes.Volume(np.ones((6, 6, 6), dtype=np.uint8), (0.45, 0.45, 0.45))
    with pytest.raises(DataError, match="at most 4 fit"):
        volumes.skullfix_frame(full, Path("x"))
    empty = volumes.Volume(np.zeros((6, 6, 6), dtype=np.uint8), (0.45, 0.45, 0.45))
    with pytest.raises(DataError, match="has no voxels"):
        volumes.skullfix_frame(empty, Path("x"))
