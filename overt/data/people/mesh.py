"""Meshes as files that every viewer opens: Wavefront OBJ and binary PLY."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError

SUFFIXES = (".obj", ".ply")


def write_mesh(path: Path, vertices: NDArray[Any], faces: NDArray[Any]) -> None:
    """Vertices (V, 3) and faces (F, 3) to a file of the kind that its name says."""
    if path.suffix == ".obj":
        lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in vertices]
        lines += [f"f {a} {b} {c}" for a, b, c in faces + 1]  # counted from 1
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".ply":
        header = (
            "ply\nformat binary_little_endian 1.0\n"
            f"element vertex {len(vertices)}\n"
            "property float x\nproperty float y\nproperty float z\n"
            f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
        )
        rows = np.zeros(len(faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
        rows["count"], rows["corners"] = 3, faces
        path.write_bytes(header.encode() + vertices.astype("<f4").tobytes() + rows.tobytes())
    else:
        raise DataError(f"{path}: a mesh is written as {' or '.join(SUFFIXES)}")
