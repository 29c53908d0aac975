"""Volumes of skulls and implants: NRRD files, and SkullFix brought to the shape of SkullBreak.

Reads and writes what the two data sets use of the format: one array, raw or compressed by gzip, in
the file itself. Never imports torch.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.atomic import new_file

SIDE = 512  # voxels along a side of a whole volume
SKULLFIX_SPACING = 0.45  # mm, to which SkullFix is resampled
_TYPES = {
    "int8": "i1", "signed char": "i1", "uint8": "u1", "unsigned char": "u1", "uchar": "u1",
    "int16": "i2", "short": "i2", "uint16": "u2", "unsigned short": "u2", "ushort": "u2",
    "int32": "i4", "int": "i4", "uint32": "u4", "unsigned int": "u4",
    "float": "f4", "double": "f8",
}  # fmt: skip

Array = NDArray[Any]


class Volume(NamedTuple):
    values: Array  # (x, y, z)
    spacing: tuple[float, float, float]  # mm

    @property
    def mask(self) -> NDArray[np.bool_]:
        return self.values > 0


def read_nrrd(path: Path) -> Volume:
    """A volume with the size of its voxels, from the diagonal of its directions; 1 where unsaid."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"the volume {path} cannot be read ({error})") from error
    head, separator, body = content.partition(b"\n\n")
    if not content.startswith(b"NRRD000") or not separator:
        raise DataError(f"{path} is no NRRD file: it does not start with NRRD000 and a header")
    fields: dict[str, str] = {}
    for line in head.decode("ascii", "replace").splitlines()[1:]:
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            fields[key.strip().lower()] = value.lstrip("=").strip()
    try:
        shape = tuple(int(word) for word in fields["sizes"].split())
        order = "<" if fields.get("endian", "little") == "little" else ">"
        kind = np.dtype(order + _TYPES[fields["type"]])
        encoding = fields["encoding"]
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: its header lacks or misstates {error}") from error
    if len(shape) != 3:
        raise DataError(f"{path}: a volume of shape {shape}; expected are three axes")
    if "data file" in fields or "datafile" in fields:
        raise DataError(f"{path}: its values lie in another file; write it as one .nrrd file")
    if encoding in ("gzip", "gz"):
        try:
            body = gzip.decompress(body)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: its values cannot be unpacked ({error})") from error
    elif encoding != "raw":
        raise DataError(f"{path}: encoding {encoding}; allowed are raw and gzip")
    expected = int(np.prod(shape)) * kind.itemsize
    if len(body) < expected:
        raise DataError(f"{path}: {len(body)} bytes of values, {expected} are due; it is cut off")
    values = np.frombuffer(body, kind, int(np.prod(shape))).reshape(shape, order="F")
    return Volume(values, _spacing(fields, path))


def _spacing(fields: dict[str, str], path: Path) -> tuple[float, float, float]:
    try:
        if "space directions" in fields:
            rows = fields["space directions"].replace(" ", "").strip("()").split(")(")
            vectors = np.array([[float(x) for x in row.split(",")] for row in rows])
            steps = [abs(float(vectors[axis, axis])) for axis in range(3)]
        elif "spacings" in fields:
            steps = [float(word) for word in fields["spacings"].split()]
        else:
            steps = [1.0, 1.0, 1.0]
        first, second, third = steps
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: the size of its voxels is not readable ({error})") from error
    return first, second, third


def write_nrrd(path: Path, volume: Volume) -> None:
    """Write a volume of bytes, compressed, under its name only once it is whole."""
    values = volume.values.astype(np.uint8)
    directions = " ".join(
        "(" + ",".join(repr(float(step)) if a == b else "0" for b in range(3)) + ")"
        for a, step in enumerate(volume.spacing)
    )
    header = [
        "NRRD0004", "type: uint8", "dimension: 3", "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, values.shape))}", f"space directions: {directions}",
        "kinds: domain domain domain", "encoding: gzip", "space origin: (0,0,0)", "", "",
    ]  # fmt: skip
    body = gzip.compress(values.tobytes(order="F"), compresslevel=4, mtime=0)
    with new_file(path) as hidden:
        hidden.write_bytes("\n".join(header).encode() + body)


class Frame(NamedTuple):
    """How a SkullFix volume was brought to 512 voxels: its own zoom, crop and padding."""

    zoom: tuple[float, float, float]
    box: tuple[slice, ...]
    before: tuple[int, int, int]  # voxels put in front

    def apply(self, values: Array) -> NDArray[np.bool_]:
        """Any volume of the same skull, resampled, cropped and padded alike."""
        cropped = resample(values, self.zoom)[self.box]
        whole = np.zeros((SIDE, SIDE, SIDE), dtype=bool)
        place = tuple(
            slice(first, first + size)
            for first, size in zip(self.before, cropped.shape, strict=True)
        )
        whole[place] = cropped
        return whole


def skullfix_frame(complete: Volume, path: Path) -> Frame:
    """0.45 mm voxels, the empty slabs around the complete skull cut off, padded to 512 voxels.

    Padding is on both sides in x and y, the odd voxel after, and at the end only in z.
    """
    zoom = (1.0, 1.0, 1.0)
    if complete.spacing[2] > 0:
        x, y, z = (step / SKULLFIX_SPACING for step in complete.spacing)
        zoom = (x, y, z)
    values = resample(complete.values, zoom)
    if not values.any():
        raise DataError(f"{path}: the complete skull has no voxels")
    box = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        places = np.flatnonzero(values.any(axis=others))
        box.append(slice(int(places[0]), int(places[-1]) + 1))
    sizes = [part.stop - part.start for part in box]
    if max(sizes) > SIDE:
        raise DataError(
            f"{path}: the skull measures {sizes} voxels of {SKULLFIX_SPACING} mm; at most {SIDE} "
            "fit. Check the size of the voxels in its header."
        )
    before = ((SIDE - sizes[0]) // 2, (SIDE - sizes[1]) // 2, 0)
    return Frame(zoom, tuple(box), before)


def resample(values: Array, zoom: tuple[float, float, float]) -> NDArray[np.bool_]:
    """A mask at another resolution: linear along each axis, then cut at one half.

    First and last voxel keep their places, as in a zoom of SciPy.
    """
    result: Array = (values > 0).astype(np.float32)
    for axis, factor in enumerate(zoom):
        before = result.shape[axis]
        after = round(before * factor)
        if after == before:
            continue
        places = np.linspace(0, before - 1, after)
        low = np.minimum(places.astype(int), max(before - 2, 0))
        share = (places - low).astype(np.float32)
        share = share.reshape([-1 if other == axis else 1 for other in range(3)])
        lower = np.take(result, low, axis)
        upper = np.take(result, np.minimum(low + 1, before - 1), axis)
        result = lower + (upper - lower) * share
    return result >= 0.5
