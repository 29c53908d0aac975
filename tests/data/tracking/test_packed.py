"""overt/data/tracking/packed.py: a pack reads like its folder, a broken one is named."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.tracking import kubric
from overt.data.tracking.packed import (
    find_sequences,
    is_sequence_root,
    pack_sequences,
    read_frames,
    read_tracks,
)
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.errors import ConfigError, DataError
from overt.progress import told_to


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sequences") / "folders"
    write_sequences(root, 2, frames=5, height=20, width=28, points=9)
    return root


@pytest.mark.parametrize("storage", ["raw", "files"])
def test_a_pack_reads_like_the_folder(storage: str, folder: Path, tmp_path: Path) -> None:
    counted: list[int] = []
    with told_to(lambda what, done, total: counted.append(done)):
        packed = pack_sequences(folder, tmp_path / "pack", storage)
    assert [path.name for path in packed.written] == ["0000.npz", "0001.npz"]
    assert counted == [1, 2]
    found, wanted = find_sequences(tmp_path / "pack"), find_sequences(folder)
    assert [path.stem for path in found] == [path.name for path in wanted]
    for one, other in zip(found, wanted, strict=True):
        for part, truth in zip(read_tracks(one), kubric.read_tracks(other), strict=True):
            np.testing.assert_array_equal(part, truth)
        for indices in (range(5), [3, 1]):
            np.testing.assert_array_equal(read_frames(one, indices), read_frames(other, indices))


def test_jpeg_is_small_and_near(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    pack_sequences(folder, tmp_path / "jpeg", "jpeg")
    pack_sequences(folder, tmp_path / "raw", "raw")
    one, other = (tmp_path / kind / "0000.npz" for kind in ("jpeg", "raw"))
    assert one.stat().st_size < other.stat().st_size
    difference = read_frames(one, range(5)).astype(int) - read_frames(other, range(5))
    assert np.abs(difference).mean() < 8


def test_packing_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    pack_sequences(folder, tmp_path)
    (tmp_path / "0001.npz").unlink()
    before = (tmp_path / "0000.npz").stat().st_mtime_ns
    packed = pack_sequences(folder, tmp_path)
    assert ([path.name for path in packed.written], packed.kept) == (["0001.npz"], 1)
    assert (tmp_path / "0000.npz").stat().st_mtime_ns == before


def test_an_unreadable_sequence_is_left_out_and_named(tmp_path: Path) -> None:
    write_sequences(tmp_path / "in", 2, frames=3, height=16, width=16, points=4)
    (tmp_path / "in" / "0001" / "frames" / "001.png").write_bytes(b"no image")
    packed = pack_sequences(tmp_path / "in", tmp_path / "out")
    assert [path.name for path in packed.written] == ["0000.npz"]
    assert "001.png" in packed.left_out["0001"]
    (tmp_path / "in" / "0000" / "frames" / "001.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="none of the 2 sequences"):
        pack_sequences(tmp_path / "in", tmp_path / "other")


def test_damage_is_noticed(folder: Path, tmp_path: Path) -> None:
    pack_sequences(folder, tmp_path)
    file = tmp_path / "0000.npz"
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    with pytest.raises(DataError, match=r"0000\.npz: frame_\d+ is not readable"):
        read_frames(file, range(5))
    file.write_bytes(whole[:middle])
    with pytest.raises(DataError, match=r"0000\.npz: it cannot be opened"):
        read_tracks(file)


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "odd.npz"
    frame = np.zeros((4, 4, 3), np.uint8)
    np.savez(file, coords=np.zeros((2, 3, 2)), occluded=np.zeros((2, 3), bool), frame_000=frame)
    with pytest.raises(DataError, match="for 1 frames"):
        read_tracks(file)
    np.savez(file, frame_000=frame)
    with pytest.raises(DataError, match="coords is not readable"):
        read_tracks(file)


COORDS, SHOWN, PIXELS = np.zeros((2, 1, 2)), np.zeros((2, 1), bool), np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("coords", "occluded", "message"),
    [
        (COORDS * np.nan, SHOWN, "coords has 4 values that are NaN or Inf"),
        (COORDS + 1e300, SHOWN, "coords has 4 values that are NaN or Inf"),
        (COORDS.astype(str), SHOWN, "coords has shape .* and type <U"),
        (COORDS.astype(complex), SHOWN, "coords has shape .* and type complex128"),
        (COORDS, SHOWN + 2, "occluded has type int64 and values other than 0 and 1"),
        (COORDS, SHOWN * np.nan, "occluded has type float64 and values other than 0 and 1"),
        (COORDS, SHOWN[:1], r"occluded has shape \(1, 1\), expected \(2, 1\)"),
    ],
    ids=["nan", "large", "text", "complex", "two", "nan_occluded", "shape"],
)
def test_tracks_of_a_pack_are_checked_like_those_of_a_folder(
    coords: np.ndarray, occluded: np.ndarray, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "odd.npz"
    np.savez(file, coords=coords, occluded=occluded, frame_000=PIXELS)
    with pytest.raises(DataError, match=f"odd.npz: {message}"):
        read_tracks(file)


@pytest.mark.parametrize(
    "frame",
    [PIXELS / 255, PIXELS.astype(np.uint16), np.zeros((4, 4, 4), np.uint8), PIXELS[:0]],
    ids=["float", "uint16", "four_channels", "empty"],
)
def test_frames_of_a_pack_that_are_no_pixels_are_refused(frame: np.ndarray, tmp_path: Path) -> None:
    file = tmp_path / "odd.npz"
    np.savez(file, coords=COORDS, occluded=SHOWN, frame_000=frame)
    with pytest.raises(DataError, match=r"expected one shape \(height, width, 3\), uint8"):
        read_frames(file, [0])


def test_hidden_files_are_no_sequences(folder: Path, tmp_path: Path) -> None:
    pack_sequences(folder, tmp_path / "packed")
    expected = find_sequences(tmp_path / "packed")
    (tmp_path / "packed" / f"._{expected[0].name}").write_bytes(b"\0")
    assert find_sequences(tmp_path / "packed") == expected


def test_an_unknown_storage_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean raw\?"):
        pack_sequences(folder, tmp_path, "rw")


def test_folders_of_sequences_are_told_from_folders_of_images(folder: Path, tmp_path: Path) -> None:
    assert is_sequence_root(folder)
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "0.png").write_bytes(b"")
    assert not is_sequence_root(tmp_path)
