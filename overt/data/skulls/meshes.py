"""Mesh files: binary STL, OBJ and PLY are written here; trimesh reads any common format.

Coordinates are LPS in mm. STL and OBJ record that in a comment that 3D Slicer reads. Never imports
torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import check_file

MESHES = (".stl", ".ply", ".obj")
_SPACE = "SPACE=LPS"

Points = NDArray[np.floating[Any]]  # (V, 3)
Faces = NDArray[np.int64]  # (F, 3)


def read_mesh(path: Path) -> tuple[Points, Faces]:
    """Read vertices and faces; RAS, if a comment names it, is converted to LPS."""
    try:
        import trimesh
    except ImportError as error:
        raise DataError(
            "meshes are read by trimesh, which is not installed; pip install 'overt[medical]'"
        ) from error
    check_file(path)
    try:
        mesh: Any = trimesh.load(path, force="mesh")
        vertices = np.asarray(mesh.vertices, dtype=np.float64)
        faces = np.asarray(mesh.faces, dtype=np.int64)
    except Exception as error:  # trimesh stops with almost any error on a damaged file
        raise DataError(f"{path} cannot be read as a mesh ({error})") from error
    if not len(faces) or not np.isfinite(vertices).all():
        raise DataError(f"{path}: a mesh without faces, or with vertices that are not finite")
    with path.open("rb") as file:
        start = file.read(400)
    if b"SPACE=RAS" in start:
        vertices = vertices * [-1, -1, 1]
    return vertices, faces


def write_stl(path: Path, vertices: Points, faces: Faces) -> None:
    """Write a binary STL, the format of printers."""
    corners = vertices[faces].astype("<f4")  # (F, 3, 3)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    kind = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
    records = np.zeros(len(faces), dtype=kind)
    records["normal"], records["corners"] = normals, corners
    header = f"overt implant; {_SPACE}".encode().ljust(80)
    with new_file(path) as hidden:
        hidden.write_bytes(header + np.uint32(len(faces)).tobytes() + records.tobytes())


def write_obj(path: Path, vertices: Points, faces: Faces) -> None:
    """Write an OBJ, the format of modeling tools."""
    lines = [f"# overt implant; {_SPACE}", "o implant"]
    lines += [f"v {x:.5f} {y:.5f} {z:.5f}" for x, y, z in vertices.tolist()]
    lines += [f"f {a} {b} {c}" for a, b, c in (faces + 1).tolist()]
    with new_file(path) as hidden:
        hidden.write_text("\n".join(lines) + "\n")


def write_ply_points(path: Path, points: Points) -> None:
    """Write points in the format that mesh viewers read."""
    header = (
        f"ply\nformat binary_little_endian 1.0\ncomment {_SPACE}\nelement vertex {len(points)}\n"
        "property float x\nproperty float y\nproperty float z\nend_header\n"
    )
    with new_file(path) as hidden:
        hidden.write_bytes(header.encode() + points.astype("<f4").tobytes())
