"""Volumes in NRRD files: one array, raw or gzip-compressed, with its position in patient space.

Reads and writes the subset of the format used by SkullBreak, SkullFix and 3D Slicer. Never imports
torch.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from overt.data.skulls.volumes import LPS_TO_RAS, Matrix, Volume
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import ADVICE, read_file, unpack_gzip

_TYPES = {
    "signed char": "i1", "int8": "i1", "int8_t": "i1",
    "uchar": "u1", "unsigned char": "u1", "uint8": "u1", "uint8_t": "u1",
    "short": "i2", "short int": "i2", "signed short": "i2", "signed short int": "i2",
    "int16": "i2", "int16_t": "i2",
    "ushort": "u2", "unsigned short": "u2", "unsigned short int": "u2",
    "uint16": "u2", "uint16_t": "u2",
    "int": "i4", "signed int": "i4", "int32": "i4", "int32_t": "i4",
    "uint": "u4", "unsigned int": "u4", "uint32": "u4", "uint32_t": "u4",
    "longlong": "i8", "long long": "i8", "long long int": "i8", "signed long long": "i8",
    "signed long long int": "i8", "int64": "i8", "int64_t": "i8",
    "ulonglong": "u8", "unsigned long long": "u8", "unsigned long long int": "u8",
    "uint64": "u8", "uint64_t": "u8",
    "float": "f4", "double": "f8",
}  # fmt: skip
_ALLOWED_TYPES = (
    "int8, uint8, int16, uint16, int32, uint32, int64, uint64, float, double and their synonyms"
)
_ORDERS = {"little": "<", "big": ">"}
_LARGEST_INTEGER = 1 << 40
_LONGEST_HEADER = 1 << 20  # bytes, of a header that no blank line ends
# From the file's space to LPS.
_SPACES = {
    "left-posterior-superior": np.eye(4), "lps": np.eye(4),
    "right-anterior-superior": LPS_TO_RAS, "ras": LPS_TO_RAS,
    "left-anterior-superior": np.diag([1.0, -1.0, 1.0, 1.0]),
    "las": np.diag([1.0, -1.0, 1.0, 1.0]),
}  # fmt: skip
_MILLIMETERS = {"mm": 1.0, "": 1.0, "m": 1e3, "cm": 10.0, "um": 1e-3}


def read_nrrd(path: Path) -> Volume:
    """Read a volume; without a space in the file, its axes are those of LPS."""
    try:
        content = read_file(path)
    except OSError as error:
        raise DataError(f"the volume {path} cannot be read ({error})") from error
    fields, body = _split(content, path)
    if "data file" in fields or "datafile" in fields:
        raise DataError(f"{path}: its values are in another file; write it as one .nrrd file")
    shape, kind = _shape(fields, path), _kind(fields, path)
    body = _skip_and_unpack(body, math.prod(shape) * kind.itemsize, fields, path)
    values = np.frombuffer(body, kind, math.prod(shape)).reshape(shape, order="F")
    return Volume(values, _affine(fields, path))


def names_space(path: Path) -> bool:
    """Return whether the header says which patient directions the axes have."""
    return "space" in _header(path)


def names_axes(path: Path) -> bool:
    """Return whether the header gives the size of a voxel; its directions come with it."""
    return not {"space directions", "spacings"}.isdisjoint(_header(path))


def read_affine(path: Path) -> Matrix:
    """Return the affine of a volume without reading its values."""
    return _affine(_header(path), path)


def _header(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        return _split(file.read(_LONGEST_HEADER), path)[0]


def _split(content: bytes, path: Path) -> tuple[dict[str, str], bytes]:
    """Return the fields of the header, by names in lower case, and the bytes after it."""
    if not content.startswith(b"NRRD000"):
        raise DataError(f"{path} is not an NRRD file: it does not start with NRRD000")
    blank = re.search(rb"\r?\n\r?\n", content)
    # The blank line is optional where the values are in another file.
    head = content[: blank.start() if blank else _LONGEST_HEADER]
    fields: dict[str, str] = {}
    for line in head.decode("ascii", "replace").splitlines()[1:]:
        key, colon, value = line.partition(":")
        # `key:=value` is free metadata, whatever its key.
        if colon and not line.startswith("#") and not value.startswith("="):
            fields[key.strip().lower()] = value.strip()
    return fields, content[blank.end() :] if blank else b""


def _field(fields: dict[str, str], name: str, path: Path) -> str:
    if name not in fields:
        raise DataError(f"{path}: its header lacks the field '{name}'; save the volume again")
    return fields[name]


def _integer(text: str) -> int:
    """Read an integer; larger ones than any file needs do not fit into messages and floats."""
    number = int(text)
    if abs(number) > _LARGEST_INTEGER:
        raise ValueError(text)
    return number


def _shape(fields: dict[str, str], path: Path) -> tuple[int, ...]:
    sizes = _field(fields, "sizes", path)
    try:
        shape = tuple(_integer(word) for word in sizes.split())
    except ValueError as error:
        raise DataError(
            f"{path}: sizes: {sizes[:100]!r} in its header; expected three integers"
        ) from error
    if len(shape) != 3:
        raise DataError(f"{path}: a volume of shape {shape}; expected three axes")
    if min(shape) < 1:
        raise DataError(f"{path}: a volume of shape {shape}; expected a voxel or more on each axis")
    return shape


def _kind(fields: dict[str, str], path: Path) -> np.dtype[Any]:
    name = _field(fields, "type", path).lower()
    if name not in _TYPES:
        raise DataError(f"{path}: values of type {name!r}; allowed: {_ALLOWED_TYPES}")
    endian = fields.get("endian", "little").lower()
    if endian not in _ORDERS:
        raise DataError(f"{path}: endian: {endian!r} in its header; allowed: little and big")
    return np.dtype(_ORDERS[endian] + _TYPES[name])


def _skip_and_unpack(body: bytes, expected: int, fields: dict[str, str], path: Path) -> bytes:
    """Return the `expected` bytes of values.

    Lines are skipped in the file, then bytes: in the file if it is raw, else in what it unpacks to.
    """
    lines, skipped = (_skip(fields, name, path) for name in ("line skip", "byte skip"))
    encoding = _field(fields, "encoding", path).lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise DataError(f"{path}: encoding {encoding}; allowed: raw and gzip")
    if lines < 0 or skipped < (-1 if encoding == "raw" else 0):
        raise DataError(
            f"{path}: line skip {lines} and byte skip {skipped} of {encoding} values; expected 0 "
            "or more, or byte skip -1 of raw values. Save the volume again."
        )
    body = body[_start_of_line(body, lines) :]
    if encoding == "raw":
        # -1: the values are the last bytes of the file.
        body = body[max(len(body) - expected, 0) :] if skipped < 0 else body[skipped:]
    else:
        try:
            body = unpack_gzip(body, skipped + expected, str(path))[skipped:]
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: its values cannot be unpacked ({error}); {ADVICE}") from error
    if len(body) < expected:
        raise DataError(
            f"{path}: {len(body)} bytes of values, expected {expected}; the file is truncated"
        )
    return body


def _start_of_line(body: bytes, number: int) -> int:
    """Return the offset of a line, counted from 0; the end where there are fewer lines."""
    offset = 0
    for _ in range(number):
        offset = body.find(b"\n", offset) + 1
        if not offset:
            return len(body)
    return offset


def _skip(fields: dict[str, str], name: str, path: Path) -> int:
    text = fields.get(name, fields.get(name.replace(" ", ""), "0"))
    try:
        return _integer(text)
    except ValueError as error:
        raise DataError(
            f"{path}: {name}: {text[:100]!r} in its header; expected an integer"
        ) from error


def _vectors(text: str) -> list[list[float]]:
    rows = text.replace(" ", "").strip("()").split(")(")
    return [[float(word) for word in row.split(",")] for row in rows]


def _scale(fields: dict[str, str], path: Path) -> Matrix:
    """Return the mm of the header's unit along each axis of its space, (3, 1)."""
    text = fields.get("space units", '"" "" ""')
    units = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', text)]
    if len(units) != 3 or not _MILLIMETERS.keys() >= set(units):
        raise DataError(
            f"{path}: space units {text[:100]}; allowed: three of "
            f'{", ".join(filter(None, _MILLIMETERS))} and "" (mm). Save the volume in mm.'
        )
    return np.array([[_MILLIMETERS[unit]] for unit in units])


def _affine(fields: dict[str, str], path: Path) -> Matrix:
    affine = np.eye(4)
    try:
        if "space directions" in fields:
            affine[:3, :3] = np.array(_vectors(fields["space directions"])).T
        elif "spacings" in fields:
            affine[:3, :3] = np.diag([float(word) for word in fields["spacings"].split()])
        if "space origin" in fields:
            affine[:3, 3] = _vectors(fields["space origin"])[0]
        affine[:3] *= _scale(fields, path)
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
