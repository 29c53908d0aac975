"""Meshes over pictures, and mesh files."""

import torch

from overt.viz.mesh import SMALL, draw_mesh, write_on

VERTICES = torch.tensor([[0.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
FACES = torch.tensor([[0, 2, 1], [0, 3, 2]])


def test_the_mesh_covers_its_pixels_only() -> None:
    picture = torch.full((3, 20, 20), 9, dtype=torch.uint8)
    drawn = draw_mesh(picture, VERTICES, FACES, 10 * VERTICES[:, :2] + 4.5)
    changed = (drawn != picture).any(0)
    assert changed[5:15, 5:15].all()
    assert changed.sum() == 100


def test_small_crops_are_enlarged_before_they_are_written_on() -> None:
    picture = torch.zeros(3, 64, 64, dtype=torch.uint8)
    written = write_on(picture, "1.25 m")
    assert written.shape == (3, SMALL, SMALL)
    assert written.any()
    large = write_on(torch.zeros(3, 300, 200, dtype=torch.uint8), "x")
    assert large.shape == (3, 300, 200)
