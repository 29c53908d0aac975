"""Cameras: a crop sees what the picture sees, and the closed-form start finds the true camera."""

import torch

from overt.geometry.camera import crop_camera, fit_camera, intrinsics, project
from overt.geometry.crop import crop_affine, transform_points


def scene(count: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    points = torch.randn(count, 12, 3, dtype=torch.float64) * 0.4
    place = torch.tensor([[0.1, -0.2, 3.0]], dtype=torch.float64).expand(count, 3)
    focal = torch.linspace(300, 900, count, dtype=torch.float64)
    centre = torch.tensor([[320.0, 240.0]], dtype=torch.float64).expand(count, 2)
    return points, place, intrinsics(focal, centre)


def test_projecting_into_a_crop_is_cropping_the_projection() -> None:
    points, place, matrix = scene()
    pixels, depth = project(points, place, matrix)
    torch.testing.assert_close(depth, points[..., 2] + 3.0)
    centre, side = torch.tensor([300.0, 200.0], dtype=torch.float64), 180.0
    sides = torch.full((4,), side, dtype=torch.float64)
    crop = crop_camera(matrix, centre, sides, 64, torch.zeros(4))
    seen, _ = project(points, place, crop)
    expected = transform_points(crop_affine((300.0, 200.0), side, 0.0, 64), pixels.numpy())
    torch.testing.assert_close(seen, torch.from_numpy(expected))


def test_a_mirrored_crop_mirrors_the_points() -> None:
    points, place, matrix = scene()
    centre = matrix[0, :2, 2] + 20
    sides = torch.full((4,), 200.0, dtype=torch.float64)
    plain = crop_camera(matrix, centre, sides, 100, torch.zeros(4))
    mirrored = crop_camera(matrix, centre, sides, 100, torch.ones(4))
    flip = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
    left, _ = project(points, place, plain)
    right, _ = project(points * flip, place * flip, mirrored)
    torch.testing.assert_close(right[..., 0], 100 - left[..., 0])
    torch.testing.assert_close(right[..., 1], left[..., 1])


def test_the_start_finds_the_camera_of_exact_keypoints() -> None:
    points, place, matrix = scene()
    keypoints, _ = project(points, place, matrix)
    good = torch.ones(4, 12, dtype=torch.bool)
    good[0, :3] = False
    keypoints[0, :3] = 1e4  # not good, so without effect
    found = fit_camera(points, place[:, 2], keypoints, good, (480, 640))
    torch.testing.assert_close(found.focal, matrix[:, 0, 0], rtol=0.05, atol=0)
    torch.testing.assert_close(found.translation, place, rtol=0, atol=0.03)


def test_without_a_keypoint_the_start_stays() -> None:
    points, place, _ = scene()
    none = torch.zeros(4, 12, dtype=torch.bool)
    found = fit_camera(points, place[:, 2], torch.zeros(4, 12, 2).double(), none, (480, 640))
    assert found.focal.tolist() == [640.0] * 4
    assert torch.isfinite(found.translation).all()


def test_one_keypoint_gives_the_translation_but_no_focal_length() -> None:
    points, place, _ = scene()
    one = torch.zeros(4, 12, dtype=torch.bool)
    one[:, 3] = True
    keypoints = torch.full((4, 12, 2), 123.0, dtype=torch.float64)
    found = fit_camera(points, place[:, 2], keypoints, one, (480, 640))
    assert found.focal.tolist() == [640.0] * 4
    centre = torch.tensor([320.0, 240.0], dtype=torch.float64).expand(4, 2)
    pixels, _ = project(points, found.translation, intrinsics(found.focal, centre))
    torch.testing.assert_close(pixels[:, 3], keypoints[:, 3])
