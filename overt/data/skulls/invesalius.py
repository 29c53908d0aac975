"""Projects of InVesalius (.inv3): a tar archive with the volume and a description.

InVesalius stores axial slices from the feet to the head and flips each, so that rows grow to the
front. The patient's position in the scanner is not stored. Never imports torch.
"""

from __future__ import annotations

import plistlib
import tarfile
import zlib
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import numpy as np

from overt.data.skulls.volumes import Volume
from overt.errors import DataError
from overt.files.bounds import check_file

_LIMIT = 4 << 30  # bytes of a volume
_TYPES = {"int16", "uint16", "int32", "uint8", "int8", "float32", "float64"}


def read_invesalius(path: Path) -> Volume:
    """Read the volume of a project: (x, y, z) growing to the left, to the front, to the head."""
    check_file(path)
    try:
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            facts = plistlib.loads(_content(archive, members, "main.plist", path))
            matrix = facts["matrix"]
            shape = tuple(int(size) for size in matrix["shape"])  # (z, y, x)
            kind, spacing = str(matrix["dtype"]), [float(step) for step in facts["spacing"]]
            if kind not in _TYPES or len(shape) != 3 or len(spacing) != 3 or min(shape) < 1:
                raise DataError(
                    f"{path}: a volume of type {kind}, shape {shape} and spacing {spacing}; "
                    f"expected three axes of one of {', '.join(sorted(_TYPES))}"
                )
            body = _content(archive, members, str(matrix["filename"]), path)
    except tarfile.ReadError as error:  # its text lists every compression that was tried
        raise DataError(
            f"{path} is not an InVesalius project, or is truncated: expected a tar archive; save "
            "the project again"
        ) from error
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as an InVesalius project ({error}); expected a tar archive"
        ) from error
    except (
        plistlib.InvalidFileException, ExpatError, KeyError, TypeError, ValueError, OverflowError,
    ) as error:  # fmt: skip
        raise DataError(
            f"{path}: its main.plist lacks or misstates {error}; save the project again"
        ) from error
    dtype = np.dtype(kind).newbyteorder("<")
    expected = int(np.prod(shape)) * dtype.itemsize
    if len(body) != expected:
        raise DataError(
            f"{path}: {len(body)} bytes of values, expected {expected}; the file is truncated"
        )
    values: Any = np.frombuffer(body, dtype).reshape(shape).transpose(2, 1, 0)
    x, y, z = spacing
    return Volume(values, np.diag([x, -y, z, 1.0])).check(str(path))


def _content(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str, path: Path
) -> bytes:
    member = members.get(name)
    file = None if member is None or member.size > _LIMIT else archive.extractfile(member)
    if file is None:
        raise DataError(f"{path}: no {name} in the archive; it is not an InVesalius project")
    return file.read()
