"""overt/data/people/mesh.py: meshes in either file format."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from overt.data.people.mesh import write_mesh
from overt.errors import DataError

VERTICES = torch.tensor([[0.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, 1.0, 2.0], [0.0, 1.0, 2.0]])


FACES = torch.tensor([[0, 2, 1], [0, 3, 2]])


def test_meshes_are_written_in_either_format(tmp_path: Path) -> None:
    vertices, faces = VERTICES.numpy(), FACES.numpy()
    write_mesh(tmp_path / "mesh.obj", vertices, faces)
    lines = (tmp_path / "mesh.obj").read_text().splitlines()
    places = [list(map(float, line.split()[1:])) for line in lines if line.startswith("v ")]
    np.testing.assert_allclose(places, vertices)
    corners = [list(map(int, line.split()[1:])) for line in lines if line.startswith("f ")]
    assert corners == (faces + 1).tolist()
    write_mesh(tmp_path / "mesh.ply", vertices, faces)
    header, _, body = (tmp_path / "mesh.ply").read_bytes().partition(b"end_header\n")
    assert b"element vertex 4" in header
    assert len(body) == 4 * 12 + 2 * 13
    assert struct.unpack("<3f", body[12:24]) == (1.0, 0.0, 2.0)
    assert struct.unpack("<B3i", body[48:61]) == (3, 0, 2, 1)
    write_mesh(tmp_path / "mesh.glb", vertices, faces)
    data = (tmp_path / "mesh.glb").read_bytes()
    assert struct.unpack("<4sII", data[:12]) == (b"glTF", 2, len(data))
    length = struct.unpack("<I", data[12:16])[0]
    content = json.loads(data[20 : 20 + length])
    assert [part["count"] for part in content["accessors"]] == [4, 6]
    points = np.frombuffer(data[28 + length : 28 + length + 48], "<f4").reshape(4, 3)
    np.testing.assert_allclose(points, vertices * [1, -1, -1])  # y up, towards the viewer
    with pytest.raises(DataError, match=r"\.obj, \.ply, \.glb"):
        write_mesh(tmp_path / "mesh.stl", vertices, faces)
