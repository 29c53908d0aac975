"""overt/data/skulls/meshes.py: what is written is what other programs read."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import meshes
from overt.errors import DataError
from overt.geometry.isosurface import enclosed_volume, mask_surface


@pytest.mark.parametrize("write", [meshes.write_stl, meshes.write_obj])
def test_a_mesh_comes_back(write: object, tmp_path: Path) -> None:
    mask = np.zeros((8, 9, 10), dtype=bool)
    mask[2:6, 2:7, 2:8] = True
    vertices, faces = mask_surface(mask)
    path = tmp_path / ("x.stl" if write is meshes.write_stl else "x.obj")
    write(path, vertices - 40, faces)  # type: ignore[operator]
    found, sides = meshes.read_mesh(path)
    assert len(sides) == len(faces)
    assert enclosed_volume(found, sides) == pytest.approx(
        enclosed_volume(vertices, faces), rel=1e-3
    )
    np.testing.assert_allclose(found.min(axis=0), vertices.min(axis=0) - 40, atol=1e-4)
    assert b"SPACE=LPS" in path.read_bytes()[:200]
    path.write_bytes(path.read_bytes().replace(b"SPACE=LPS", b"SPACE=RAS"))
    turned, _ = meshes.read_mesh(path)
    np.testing.assert_allclose(turned.min(axis=0)[2], found.min(axis=0)[2])
    np.testing.assert_allclose(turned.max(axis=0)[:2], -found.min(axis=0)[:2])


def test_points_are_a_ply(tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(5, 3))
    meshes.write_ply_points(tmp_path / "x.ply", points)
    body = (tmp_path / "x.ply").read_bytes().split(b"end_header\n")[1]
    np.testing.assert_allclose(np.frombuffer(body, "<f4").reshape(5, 3), points, rtol=1e-6)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.stl").write_bytes(b"no mesh")
    with pytest.raises(DataError, match=r"x\.stl"):
        meshes.read_mesh(tmp_path / "x.stl")
