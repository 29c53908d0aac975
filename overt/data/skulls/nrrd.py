"""Volumes in NRRD files: one array, raw or gzip-compressed, with its position in patient space.

Reads and writes the subset of the format used by SkullBreak, SkullFix and 3D Slicer. Never imports
torch.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from overt.data.skulls.volumes import LPS_TO_RAS, Matrix, Volume
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import read_file, unpack_gzip

_TYPES = {
    "int8": "i1", "signed char": "i1", "int8_t": "i1",
    "uint8": "u1", "unsigned char": "u1", "uchar": "u1", "uint8_t": "u1",
    "int16": "i2", "short": "i2", "int16_t": "i2",
    "uint16": "u2", "unsigned short": "u2", "ushort": "u2", "uint16_t": "u2",
    "int32": "i4", "int": "i4", "int32_t": "i4", "uint32": "u4", "unsigned int": "u4",
    "float": "f4", "double": "f8",
}  # fmt: skip
# From the file's space to LPS.
_SPACES = {
    "left-posterior-superior": np.eye(4), "lps": np.eye(4),
    "right-anterior-superior": LPS_TO_RAS, "ras": LPS_TO_RAS,
    "left-anterior-superior": np.diag([1.0, -1.0, 1.0, 1.0]),
    "las": np.diag([1.0, -1.0, 1.0, 1.0]),
}  # fmt: skip


def read_nrrd(path: Path) -> Volume:
    """Read a volume; without a space in the file, its axes are those of LPS."""
    try:
        content = read_file(path)
    except OSError as error:
        raise DataError(f"the volume {path} cannot be read ({error})") from error
    head, separator, body = content.partition(b"\n\n")
    if not content.startswith(b"NRRD000") or not separator:
        raise DataError(f"{path} is not an NRRD file: it does not start with NRRD000 and a header")
    fields: dict[str, str] = {}
    for line in head.decode("ascii", "replace").splitlines()[1:]:
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            fields[key.strip().lower()] = value.lstrip("=").strip()
    try:
        shape = tuple(int(word) for word in fields["sizes"].split())
        order = "<" if fields.get("endian", "little") == "little" else ">"
        kind = np.dtype(order + _TYPES[fields["type"].lower()])
        encoding = fields["encoding"].lower()
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: its header lacks or misstates {error}") from error
    if len(shape) != 3:
        raise DataError(f"{path}: a volume of shape {shape}; expected three axes")
    if "data file" in fields or "datafile" in fields:
        raise DataError(f"{path}: its values are in another file; write it as one .nrrd file")
    expected = math.prod(shape) * kind.itemsize
    if encoding in ("gzip", "gz"):
        try:
            body = unpack_gzip(body, expected, str(path))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: its values cannot be unpacked ({error})") from error
    elif encoding != "raw":
        raise DataError(f"{path}: encoding {encoding}; allowed: raw and gzip")
    if min(shape) < 1:
        raise DataError(f"{path}: a volume of shape {shape}; expected a voxel or more on each axis")
    if len(body) < expected:
        raise DataError(
            f"{path}: {len(body)} bytes of values, expected {expected}; the file is truncated"
        )
    values = np.frombuffer(body, kind, math.prod(shape)).reshape(shape, order="F")
    return Volume(values, _affine(fields, path))


def _vectors(text: str) -> list[list[float]]:
    rows = text.replace(" ", "").strip("()").split(")(")
    return [[float(word) for word in row.split(",")] for row in rows]


def _affine(fields: dict[str, str], path: Path) -> Matrix:
    affine = np.eye(4)
    try:
        if "space directions" in fields:
            affine[:3, :3] = np.array(_vectors(fields["space directions"])).T
        elif "spacings" in fields:
            affine[:3, :3] = np.diag([float(word) for word in fields["spacings"].split()])
        if "space origin" in fields:
            affine[:3, 3] = _vectors(fields["space origin"])[0]
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: its voxel size cannot be read ({error})") from error
    space = fields.get("space", "left-posterior-superior").lower()
    if space not in _SPACES:
        raise DataError(
            f"{path}: space {space}; allowed: {', '.join(_SPACES)}. Save it in one of these, "
            "for example by 3D Slicer."
        )
    return np.asarray(_SPACES[space] @ affine)


def write_nrrd(path: Path, volume: Volume) -> None:
    """Write a compressed volume atomically; masks as bytes."""
    values = volume.values
    kinds = {"i1": "int8", "u1": "uint8", "i2": "int16", "u2": "uint16", "f4": "float"}
    name = kinds.get(values.dtype.str[1:])
    if name is None:
        values, name = values.astype(np.uint8), "uint8"
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)

    def vector(numbers: Matrix) -> str:
        return "(" + ",".join(repr(float(x)) if x else "0" for x in numbers) + ")"

    directions = " ".join(vector(column) for column in volume.affine[:3, :3].T)
    header = [
        "NRRD0004", f"type: {name}", "dimension: 3", "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, values.shape))}", f"space directions: {directions}",
        "kinds: domain domain domain", "endian: little", "encoding: gzip",
        f"space origin: {vector(volume.affine[:3, 3])}", "", "",
    ]  # fmt: skip
    body = gzip.compress(values.tobytes(order="F"), compresslevel=4, mtime=0)
    with new_file(path) as hidden:
        hidden.write_bytes("\n".join(header).encode() + body)
