"""Write meshes in formats that every viewer opens: Wavefront OBJ, binary PLY and binary glTF."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError

SUFFIXES = (".obj", ".ply", ".glb")
_FLOAT, _UNSIGNED = 5126, 5125  # types of numbers in glTF
_VERTICES, _CORNERS = 34962, 34963  # uses of its buffers


def write_mesh(path: Path, vertices: NDArray[Any], faces: NDArray[Any]) -> None:
    """Write vertices (V, 3) and faces (F, 3) to a file; its suffix selects the format."""
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
    elif path.suffix == ".glb":
        path.write_bytes(_glb(vertices, faces))
    else:
        raise DataError(f"{path}: a mesh is written as {', '.join(SUFFIXES)}")


def _glb(vertices: NDArray[Any], faces: NDArray[Any]) -> bytes:
    """Return binary glTF 2.0, whose y axis points up and whose z axis points at the viewer."""
    points = (vertices * np.array([1.0, -1.0, -1.0])).astype("<f4")
    corners = faces.astype("<u4")
    data: bytes = points.tobytes() + corners.tobytes()
    content = {
        "asset": {"version": "2.0", "generator": "overt"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "buffers": [{"byteLength": len(data)}],
        "bufferViews": [
            {"buffer": 0, "byteLength": points.nbytes, "target": _VERTICES},
            {
                "buffer": 0, "byteOffset": points.nbytes, "byteLength": corners.nbytes,
                "target": _CORNERS,
            },
        ],
        "accessors": [
            {
                "bufferView": 0, "componentType": _FLOAT, "count": len(points), "type": "VEC3",
                "min": points.min(0).tolist(), "max": points.max(0).tolist(),
            },
            {
                "bufferView": 1, "componentType": _UNSIGNED, "count": corners.size,
                "type": "SCALAR",
            },
        ],
    }  # fmt: skip
    text = json.dumps(content).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text
    chunks += struct.pack("<I4s", len(data), b"BIN\0") + data
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks
