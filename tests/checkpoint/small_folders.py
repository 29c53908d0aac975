"""Checkpoint folders of a few bytes."""

from pathlib import Path

from overt.checkpoint.tensor_files import Bytes
from overt.checkpoint.writing import write_folder

FILES = {"a.bin": b"first" * 1000, "b.json": b"{}", "empty": b""}


def write(directory: Path, name: str, serial: int, files=FILES) -> Path:
    contents = {file: Bytes(data) for file, data in files.items()}
    return write_folder(directory, name, contents, {"serial": serial, "step": serial}).path


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
