"""overt/files/bounds.py: bombs and sparse files are refused, at once and in little memory."""

import gzip
import io
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.data.images.arrays import ImageArrays
from overt.data.images.decode import read_file as read_image_file
from overt.data.people.human_data import HumanData
from overt.data.skulls.lists import load_cloud
from overt.data.skulls.nrrd import read_nrrd
from overt.data.skulls.scans import read_scan
from overt.data.tracking.video import read_video
from overt.errors import DataError
from overt.files import bounds
from overt.files.bounds import check_archive, open_arrays, unpack_gzip
from overt.geometry.body_files import load_body, read_regressor
from overt.geometry.body_transfer import load_transfer

HUGE = 100 * 10**9  # bytes
SHAPE = (HUGE // 300_000, 3, 100, 1000)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Whoever asks for gigabytes fails here, instead of taking the machine down."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def header(shape: tuple[int, ...]) -> bytes:
    """What begins an .npy file of bytes."""
    stream = io.BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def claims_much(path: Path) -> Path:
    """An .npy file of a hundred bytes whose header claims 100 GB."""
    path.write_bytes(header(SHAPE) + b"x" * 100)
    return path


def sparse(path: Path) -> Path:
    """An .npy file of 100 GB that takes a block on disk."""
    path.write_bytes(header(SHAPE))
    os.truncate(path, len(header(SHAPE)) + HUGE)
    return path


def bomb(path: Path) -> Path:
    """An .npz archive of kilobytes whose member says that it unpacks to 100 GB."""
    content = header(SHAPE) + bytes(10**6)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
    raw = bytearray(path.read_bytes())
    size = struct.pack("<I", len(content))
    for place in [index for index in range(len(raw)) if raw.startswith(size, index)]:
        raw[place : place + 4] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(raw)
    return path


# Of the archives that the readers below expect.
MEMBERS = ("images", "labels", "video", "values", "spacing", "image_path", "v_template")


def small_claim(path: Path) -> Path:
    """An .npz archive whose member is short, with a header that claims 100 GB."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in MEMBERS:
            archive.writestr(f"{name}.npy", header(SHAPE) + b"x")
    return path


def of_images(path: Path) -> object:
    return ImageArrays(path)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "images": (".npz", of_images),
    "video": (".npz", read_video),
    "video.npy": (".npy", read_video),
    "scan": (".npz", read_scan),
    "scan.npy": (".npy", lambda path: read_scan(path, (1.0, 1.0, 1.0))),
    "cloud": (".npy", load_cloud),
    "annotations": (".npz", HumanData.load),
    "body": (".npz", lambda path: load_body(str(path), "model.body")),
    "regressor": (".npy", lambda path: read_regressor(path, "key", 3)),
    "transfer": (".npz", lambda path: load_transfer(str(path), "model.transfer", 3, 3)),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_arrays_refuses_what_its_file_cannot_hold(
    reader: str, tmp_path: Path
) -> None:
    suffix, read = READERS[reader]
    makers = (claims_much, sparse) if suffix == ".npy" else (small_claim, bomb)
    for make in makers:
        if reader == "cloud" and make is sparse:
            continue  # it is mapped, not read
        with pytest.raises(DataError, match=r"claims|GB"):
            read(make(tmp_path / f"{make.__name__}{suffix}"))


def cut_header() -> bytes:
    """An .npy file whose header ends after its first byte: numpy's tokenizer stops there."""
    return b"\x93NUMPY\x01\x00\x01\x00{" + bytes(100)


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_arrays_refuses_a_header_that_ends_early(
    reader: str, tmp_path: Path
) -> None:
    suffix, read = READERS[reader]
    path = tmp_path / f"cut{suffix}"
    if suffix == ".npy":
        path.write_bytes(cut_header())
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name in MEMBERS:
                archive.writestr(f"{name}.npy", cut_header())
    with pytest.raises(DataError, match="header"):
        read(path)


@pytest.mark.parametrize(
    "reader", [name for name, (suffix, _) in READERS.items() if suffix == ".npz"]
)
@pytest.mark.parametrize("content", [b"", b"junk", b"junk" * 100])
def test_every_reader_refuses_an_archive_of_other_files(
    reader: str, content: bytes, tmp_path: Path
) -> None:
    """For which numpy returns bytes, as the tracebacks of readers said."""
    path = tmp_path / "other.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in MEMBERS:
            archive.writestr(f"{name}.npy", content)
    with pytest.raises(DataError, match=r"other\.npz, .*\.npy is not an array"):
        READERS[reader][1](path)


def test_arrays_of_others_are_opened_in_one_place() -> None:
    """Besides: an index whose file was checked before, and a cache that overt itself wrote."""
    package = Path(bounds.__file__).parents[1]
    opens = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "np.load(" in path.read_text()
    }
    assert opens == {"files/bounds.py", "data/images/packed.py", "data/people/human_data.py"}


def test_a_good_file_is_opened_as_numpy_does(tmp_path: Path) -> None:
    values = {"a": np.arange(6).reshape(2, 3), "text": np.array("word"), "none": np.zeros((0, 3))}
    np.savez(tmp_path / "stored.npz", **values)
    np.savez_compressed(tmp_path / "packed.npz", **values)
    for name in ("stored.npz", "packed.npz"):
        with open_arrays(tmp_path / name) as archive:
            assert all(np.array_equal(archive[key], value) for key, value in values.items())
    with zipfile.ZipFile(tmp_path / "stored.npz", "a") as archive:
        archive.writestr("__MACOSX/._a.npy", b"attributes of macOS")
    with open_arrays(tmp_path / "stored.npz") as archive:
        assert np.array_equal(archive["a"], values["a"])
    np.save(tmp_path / "a.npy", values["a"])
    assert np.array_equal(open_arrays(tmp_path / "a.npy"), values["a"])
    assert isinstance(open_arrays(tmp_path / "a.npy", mapped=True), np.memmap)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{", b"[" * 3000])
def test_what_is_no_array_is_left_to_its_reader(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises((ValueError, EOFError)):
        open_arrays(path)


def test_a_large_file_that_is_all_there_needs_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "UNSUSPICIOUS", 10)
    monkeypatch.setattr(bounds, "_memory", lambda: 1000)
    np.save(tmp_path / "a.npy", np.arange(100))
    with pytest.raises(DataError, match="more than half of this machine's memory"):
        open_arrays(tmp_path / "a.npy")
    assert len(open_arrays(tmp_path / "a.npy", mapped=True)) == 100


def test_whole_files_are_read_where_they_are_no_sparse_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    assert read_image_file(path) == b"abc"
    os.truncate(path, HUGE)
    with pytest.raises(DataError, match="sparse"):
        read_image_file(path)
    os.rename(path, tmp_path / "a.nrrd")
    with pytest.raises(DataError, match="sparse"):
        read_nrrd(tmp_path / "a.nrrd")


def test_a_volume_is_unpacked_no_further_than_its_header_says(tmp_path: Path) -> None:
    head = b"NRRD0004\ntype: uint8\nencoding: gzip\nsizes: %s\n\n"
    packed = gzip.compress(bytes(10**6))
    path = tmp_path / "a.nrrd"
    path.write_bytes(head % b"10 10 10" + packed)
    assert read_nrrd(path).values.shape == (10, 10, 10)
    path.write_bytes(head % b"10000 10000 1000" + packed)
    with pytest.raises(DataError, match="claims 100 GB"):
        read_nrrd(path)
    for sizes in (b"-1 5 5", b"0 5 5"):
        path.write_bytes(head % sizes + packed)
        with pytest.raises(DataError, match="expected a voxel"):
            read_nrrd(path)
    assert unpack_gzip(gzip.compress(b"ab") + gzip.compress(b"cd"), 3, "x") == b"abc"


def test_the_checksum_of_packed_data_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"abcd", 0)
    assert unpack_gzip(packed + b"padding", 4, "x") == b"abcd"
    with pytest.raises(zlib.error, match="CRC check failed"):
        unpack_gzip(packed.replace(b"abcd", b"abce"), 4, "x")
    with pytest.raises(EOFError, match="truncated"):
        unpack_gzip(packed[:-1], 4, "x")
    # The checksum is not sought for longer than that.
    monkeypatch.setattr(bounds, "UNSUSPICIOUS", 10**6)
    with pytest.raises(DataError, match="more than its header says"):
        unpack_gzip(gzip.compress(bytes(10**7)), 4, "x")


def test_an_archive_of_frames_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as archive, pytest.raises(DataError, match=r"claims 4\.29 GB"):
        check_archive(archive, path)
