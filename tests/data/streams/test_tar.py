"""Tar files of every kind, and damage of every kind."""

import io
import shutil
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.streams.tar import BLOCK, RawSample, ShardReader, read_samples, walk
from overt.errors import DataError

from .shard_files import Forward, write_tar

LAYOUTS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


def everything(suffix: str) -> bool:
    return True


def read(path: Path, seeks: bool) -> list[RawSample]:
    """All samples with their content, from a file that can seek or one that cannot."""
    if seeks:
        with path.open("rb") as file:
            reader = ShardReader(file, str(path), path.stat().st_size)
            return list(read_samples(reader, everything))
    forward: Any = Forward(str(path))
    return list(read_samples(ShardReader(forward, str(path)), everything))


def contents(samples: list[RawSample]) -> dict[str, dict[str, bytes]]:
    return {sample.key: sample.content for sample in samples}


EITHER = pytest.mark.parametrize("seeks", [True, False], ids=["seeks", "forward"])


@EITHER
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_members(layout: str, seeks: bool, tmp_path: Path) -> None:
    folder = "a folder/with.dots/" + ("long/" * 15 if layout == "ustar" else "very long/" * 40)
    names = {
        "000.jpg": b"j" * 1000,
        "000.JSON": b"",
        "001.seg.png": b"p" * 512,
        f"{folder}002.cls": b"7",
        f"{folder}002.jpg": b"q" * 513,
    } | ({} if layout == "ustar" else {"Bär/∂003.txt": "ü".encode()})
    path = write_tar(tmp_path / "a.tar", names, LAYOUTS[layout])
    samples = read(path, seeks)
    assert contents(samples) == {
        "000": {"jpg": b"j" * 1000, "json": b""},
        "001": {"seg.png": b"p" * 512},
        f"{folder}002": {"cls": b"7", "jpg": b"q" * 513},
    } | ({} if layout == "ustar" else {"Bär/∂003": {"txt": "ü".encode()}})
    data = path.read_bytes()
    for sample in samples:
        for suffix, member in sample.members.items():
            content = data[member.offset : member.offset + member.size]
            assert content == sample.content[suffix]


@EITHER
def test_what_belongs_to_no_sample_is_skipped(seeks: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", pax_headers={"comment": "a global header"}) as archive:
        folder = tarfile.TarInfo("./x.d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("README", ".hidden.jpg", "x.d/._000.jpg", "__index__.json", "./000.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    assert contents(read(path, seeks)) == {"./000": {"jpg": b"1"}}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize("layout", ["gnu", "pax", "ustar", "v7"])
def test_archives_of_the_system_tar(layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number:04d}.txt").write_bytes(b"t" * number * 300)
        (folder / f"{number:04d}.cls").write_bytes(b"1")
    command = ["tar", f"--format={layout}", "--sort=name", "-cf", "a.tar", "in"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("another tar")
    samples = contents(read(tmp_path / "a.tar", True))
    assert samples == {
        f"in/{number:04d}": {"cls": b"1", "txt": b"t" * number * 300} for number in range(5)
    }


# --- refusals -------------------------------------------------------------------------------------


def three(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "a.tar", {f"{n}.txt": bytes([65 + n]) * 700 for n in range(3)})


@EITHER
@pytest.mark.parametrize(
    ("cut", "offset", "problem"),
    [
        (0, 0, "ends without its end mark"),
        (100, 0, "ends without its end mark"),
        (BLOCK, BLOCK, "bytes expected|but the file ends"),
        (1000, BLOCK, "700 bytes expected, but the file ends after 488|the file ends at 1000"),
        (3 * BLOCK, 3 * BLOCK, "ends without its end mark"),  # between two members
        (4 * BLOCK + 3, 4 * BLOCK, "700 bytes expected|the file ends at 2051"),
        (9 * BLOCK, 9 * BLOCK, "ends without its end mark: it is truncated"),
    ],
)
def test_a_truncated_shard_is_refused_with_its_offset(
    cut: int, offset: int, problem: str, seeks: bool, tmp_path: Path
) -> None:
    path = three(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=rf"a\.tar, byte {offset}: .*({problem})"):
        read(path, seeks)


@EITHER
@pytest.mark.parametrize("at", [0, 10, 3 * BLOCK + 130, 6 * BLOCK + 150])
def test_a_damaged_header_is_not_the_end(at: int, seeks: bool, tmp_path: Path) -> None:
    """Python's tarfile stops reading here, and samples are missing."""
    path = three(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    start = at // BLOCK * BLOCK
    with pytest.raises(DataError, match=rf"a\.tar, byte {start}: not a valid tar header"):
        read(path, seeks)


@EITHER
def test_content_after_the_end_is_refused(seeks: bool, tmp_path: Path) -> None:
    path = three(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole)  # cat a.tar a.tar
    with pytest.raises(DataError, match="byte 4608: the archive ends here, but more follows"):
        read(path, seeks)
    zeroed = bytearray(whole)  # a block that was never written
    zeroed[3 * BLOCK : 4 * BLOCK] = bytes(BLOCK)
    path.write_bytes(zeroed)
    with pytest.raises(DataError, match="byte 1536: the archive ends here, but more follows"):
        read(path, seeks)
    path.write_bytes(whole[: 3 * BLOCK] + bytes(2**21))  # a download that was allocated first
    with pytest.raises(DataError, match=r"byte 1536: .* more follows"):
        read(path, seeks)
    path.write_bytes(whole[: 9 * BLOCK] + bytes(BLOCK))  # one block of zeros is an end, too
    assert len(read(path, seeks)) == 3


@EITHER
def test_links_and_sparse_files_are_refused(seeks: bool, tmp_path: Path) -> None:
    for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE, tarfile.FIFOTYPE):
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as archive:
            info = tarfile.TarInfo("000.jpg")
            info.type, info.linkname = kind, "001.jpg"
            archive.addfile(info)
        with pytest.raises(DataError, match=r"byte 0: 000\.jpg is a link, .*--dereference"):
            read(path, seeks)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0.jpg", "1.jpg", "0.json"], r"byte 2560: the sample 0 appears again; .*--sort=name"),
        (["0.jpg", "0.JPG"], "byte 1536: the sample 0 has a second member 'jpg'"),
        (["README"], r"a\.tar has no samples; expected members named KEY\.SUFFIX"),
    ],
)
def test_wrong_groups_are_refused(names: list[str], message: str, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"1"))
    with pytest.raises(DataError, match=message):
        read(path, True)


@pytest.mark.parametrize(
    "records", [b"11 path=ab\n\n", b"path=a.jpg\n", b"99 path=a.jpg\n", b"6 path", b"\xff" * 20]
)
def test_damaged_pax_headers_are_refused(records: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo("header")
        info.type, info.size = tarfile.XHDTYPE, len(records)
        archive.addfile(info, io.BytesIO(records))
        archive.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(DataError, match="byte 0: not a valid pax header"):
        read(path, True)


@pytest.mark.parametrize("size", [b"-5", b"nine", b"9" * 30])
def test_impossible_sizes_are_refused(size: bytes, tmp_path: Path) -> None:
    record = b"size=" + size + b"\n"
    record = str(len(record) + 3).encode() + b" " + record
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo("header")
        info.type, info.size = tarfile.XHDTYPE, len(record)
        archive.addfile(info, io.BytesIO(record))
        archive.addfile(tarfile.TarInfo("a.jpg"))
    for seeks in (True, False):
        with pytest.raises(DataError, match=r"a\.tar, byte \d+"):
            read(path, seeks)


def test_a_zero_byte_in_a_name_is_damage() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("ä0.txt"))
    damaged = stream.getvalue().replace("ä0.txt".encode(), "ä0\0txt".encode(), 1)
    with pytest.raises(DataError, match="not a valid pax header"):
        list(walk(ShardReader(io.BytesIO(damaged), "a.tar")))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_a_data_error_or_within_a_sample(data: Any) -> None:
    """No other exception, no endless loop; never fewer samples without a word."""
    names = ("ä0.txt", "1.txt", "n" * 120 + ".txt")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 600
            archive.addfile(info, io.BytesIO(bytes(range(200)) * 3))
    damaged = np.frombuffer(stream.getvalue(), np.uint8).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, 12 * BLOCK))
        damaged[position] = data.draw(st.integers(0, 255))
    first, second = (ShardReader(io.BytesIO(damaged.tobytes()), "a.tar") for _ in range(2))
    with suppress(DataError):
        found = tuple(member.name for member in walk(first))
        assert len(found) == 3
        keys = {sample.key for sample in read_samples(second, everything)}
        # No checksum covers a name in a pax header: without its dot it belongs to no sample.
        assert keys >= {name.partition(".")[0] for name in found if name in names}
