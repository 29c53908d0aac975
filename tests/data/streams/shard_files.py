"""Small tar shards, as the tests of streams need them."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), (value % 256, 0, 255 - value % 256)).save(stream, "PNG")
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def members_of(number: int) -> dict[str, bytes]:
    """Two members of a sample; their sizes differ from sample to sample."""
    text = "x" * (number * 37 % 700)
    return {
        f"{number:06d}.cls": str(number).encode(),
        f"{number:06d}.json": json.dumps({"number": number, "text": text}).encode(),
    }


def write_tar(
    path: Path, members: Mapping[str, bytes], layout: int = tarfile.USTAR_FORMAT, mode: str = "w"
) -> Path:
    with tarfile.open(path, mode, format=layout) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_shards(folder: Path, counts: Sequence[int], mode: str = "w") -> str:
    """Shards with so many samples each, numbered through; the pattern that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    first, suffix = 0, "tar.gz" if mode == "w:gz" else "tar"
    for shard, count in enumerate(counts):
        members: dict[str, bytes] = {}
        for number in range(first, first + count):
            members |= members_of(number)
        write_tar(folder / f"train-{shard:03d}.{suffix}", members, mode=mode)
        first += count
    return f"{folder}/train-{{000..{len(counts) - 1:03d}}}.{suffix}"


def number_of(sample: dict[str, Any], rng: np.random.Generator) -> tuple[int, float]:
    """A transform: the number of a sample, and a draw."""
    assert sample["json"]["number"] == sample["cls"]
    return sample["cls"], rng.random()


class Forward(io.RawIOBase):
    """A file that cannot seek, as a pipe or a download; counts what was read."""

    def __init__(self, path: str) -> None:
        self.file, self.bytes_read = open(path, "rb"), 0  # noqa: SIM115

    def read(self, size: int = -1) -> bytes:
        content = self.file.read(min(size, 777) if size > 0 else size)  # short reads are allowed
        self.bytes_read += len(content)
        return content

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.file.close()
        super().close()


def open_forward(shard: str) -> Any:
    return Forward(shard)
