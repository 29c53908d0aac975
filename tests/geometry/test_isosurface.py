"""overt/geometry/isosurface.py: surfaces are closed, oriented and where the mask is."""

import numpy as np
import pytest
import trimesh

from overt.geometry import isosurface


@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_any_mask_has_a_watertight_surface(smoothing: float) -> None:
    # Random voxels have every case of marching cubes, ambiguous faces and the volume's face.
    mask = np.random.default_rng(0).random((12, 12, 12)) > 0.5
    vertices, faces = isosurface.mask_surface(mask, smoothing)
    assert isosurface.open_edges(faces) == 0
    assert isosurface.enclosed_volume(vertices, faces) > 0
    mesh = trimesh.Trimesh(vertices, faces, process=False)
    assert mesh.is_watertight
    assert mesh.is_winding_consistent


def test_a_ball_keeps_its_volume_and_place() -> None:
    grid = np.indices((30, 30, 30)) - 14.5
    ball = (grid**2).sum(axis=0) < 11**2
    vertices, faces = isosurface.mask_surface(ball)
    volume = isosurface.enclosed_volume(vertices, faces)
    assert volume == pytest.approx(float(ball.sum()), rel=0.02)
    np.testing.assert_allclose(vertices.mean(axis=0), 14.5, atol=0.05)


def test_a_hole_is_seen() -> None:
    _, faces = isosurface.mask_surface(np.ones((4, 4, 4), dtype=bool))
    assert isosurface.open_edges(faces) == 0
    assert isosurface.open_edges(faces[1:]) == 6  # three edges, seen from either end
    vertices, nothing = isosurface.mask_surface(np.zeros((4, 4, 4), dtype=bool))
    assert len(vertices) == len(nothing) == isosurface.open_edges(nothing) == 0
