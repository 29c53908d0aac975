"""overt/ops/raster/plain.py: weights within triangles, and which face is in front."""

import torch

from overt.ops.raster.plain import (
    NEAR_M,
    barycentric,
    face_corners,
    looks_at_camera,
    nearest_faces_plain,
)

# Looks at the camera: it turns left from outside, where y points down.
TRIANGLE = torch.tensor([[2.0, 3.0], [2.0, 13.0], [12.0, 3.0]])


def test_weights_add_up_points_from_corners() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = 10 * torch.rand(50, 3, 2, generator=generator)
    known = torch.rand(50, 3, generator=generator) - 0.2
    known = known / known.sum(1, keepdim=True)
    points = (known[..., None] * corners).sum(1)
    weights, is_inside = barycentric(corners, points)
    again = (weights[..., None] * corners).sum(1)
    torch.testing.assert_close(again, points, atol=1e-3, rtol=1e-3)
    assert torch.equal(is_inside, (known >= 0).all(1))
    assert set(is_inside.tolist()) == {True, False}
    _, is_inside = barycentric(TRIANGLE[None, :1].expand(1, 3, 2), TRIANGLE[:1])
    assert not is_inside.any()  # a point has no inside


def test_corners_and_their_turn() -> None:
    faces = torch.tensor([[0, 1, 2], [0, 2, 1]])
    corners = face_corners(TRIANGLE[None], faces)
    assert torch.equal(corners[0, 1], TRIANGLE[[0, 2, 1]])
    assert looks_at_camera(corners).tolist() == [[True, False]]


def test_the_nearest_then_the_last_face_is_in_front() -> None:
    pixels = TRIANGLE.repeat(4, 1)[None]
    faces = torch.arange(12).view(4, 3)
    depth = torch.tensor([3.0, 2.0, 2.0, NEAR_M]).repeat_interleave(3)[None]
    for perspective in (True, False):
        nearest, face, weights = nearest_faces_plain(pixels, depth, faces, (16, 16), perspective)
        assert face.unique().tolist() == [-1, 2]
        assert nearest.unique().tolist() == [2.0, torch.inf]
        torch.testing.assert_close(weights.sum(-1), (face >= 0).float())
        assert face[0, 4, 4] == 2
        torch.testing.assert_close(weights[0, 3, 7], torch.tensor([0.5, 0.0, 0.5]))


def test_depth_is_that_of_the_projection() -> None:
    depth = torch.tensor([[1.0, 1.0, 3.0]])
    faces = torch.tensor([[0, 1, 2]])
    for perspective, expected in ((True, 1.5), (False, 2.0)):
        nearest, _, _ = nearest_faces_plain(TRIANGLE[None], depth, faces, (16, 16), perspective)
        torch.testing.assert_close(nearest[0, 3, 7], torch.tensor(expected))
