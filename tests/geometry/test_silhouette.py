"""Rasters against geometry that is known, and soft silhouettes whose gradient points home."""

import pytest
import torch

from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.silhouette import part_masks, rasterize, soft_silhouette

SIZE, LARGE = (48, 48), (128, 128)
# Two triangles that make a square from (10, 12) to (30, 32), turning so that they look at us.
SQUARE = torch.tensor([[10.0, 12.0], [30.0, 12.0], [30.0, 32.0], [10.0, 32.0]])
FACES = torch.tensor([[0, 2, 1], [0, 3, 2]])


def test_a_square_covers_its_pixels() -> None:
    raster = rasterize(SQUARE[None] - 0.5, torch.full((1, 4), 2.0), FACES, SIZE)
    expected = torch.zeros(SIZE, dtype=torch.bool)
    expected[12:32, 10:30] = True
    assert torch.equal(raster.mask[0], expected)
    torch.testing.assert_close(raster.depth[0][expected], torch.full((400,), 2.0))
    assert raster.depth[0][~expected].isinf().all()
    torch.testing.assert_close(raster.weights.sum(-1)[0], expected.float())


def test_faces_that_look_away_and_those_behind_are_not_drawn() -> None:
    away = FACES[:, [0, 2, 1]]
    assert not rasterize(SQUARE[None], torch.full((1, 4), 2.0), away, SIZE).mask.any()
    assert not rasterize(SQUARE[None], torch.full((1, 4), -2.0), FACES, SIZE).mask.any()


def test_the_nearer_of_two_squares_is_in_front() -> None:
    pixels = torch.cat([SQUARE, SQUARE + 5])[None]
    depth = torch.tensor([[3.0] * 4 + [1.0] * 4])
    faces = torch.cat([FACES, FACES + 4])
    raster = rasterize(pixels - 0.5, depth, faces, SIZE)
    part = torch.tensor([1] * 4 + [2] * 4, dtype=torch.uint8)
    found = part_masks(raster, faces, part)[0]
    assert found[13, 11] == 1
    assert found[20, 20] == 2
    assert found[40, 40] == 0


def test_depth_within_a_face_is_that_of_the_plane() -> None:
    """A slanted plane: one over depth is linear in the picture."""
    depth = torch.tensor([[1.0, 4.0, 4.0, 1.0]])
    raster = rasterize(SQUARE[None], depth, FACES, SIZE)
    across = torch.arange(11, 30)
    share = (across - 10) / 20
    expected = 1 / ((1 - share) + share / 4)
    torch.testing.assert_close(raster.depth[0, 20, across], expected, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def person() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    model = BodyModel(capsule_body())
    body = model(torch.zeros(1, 10), torch.eye(3).expand(1, 22, 3, 3))
    points = body.vertices * torch.tensor([1.0, -1.0, -1.0]) + torch.tensor([0.0, 0.0, 3.0])
    pixels = 180 * points[..., :2] / points[..., 2:] + 64
    return pixels, points[..., 2], model.faces


def test_the_soft_silhouette_is_about_the_mask(
    person: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    alpha, _ = soft_silhouette(*person, LARGE)
    mask = rasterize(*person, LARGE).mask
    assert ((alpha > 0.5) == mask).float().mean() > 0.97
    assert alpha.sum() == pytest.approx(mask.sum().item(), rel=0.15)


def test_a_list_of_fixed_length_changes_nothing(
    person: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    alpha, needed = soft_silhouette(*person, LARGE)
    again, counted = soft_silhouette(*person, LARGE, capacity=int(needed) + 100)
    torch.testing.assert_close(again, alpha)
    assert int(counted) == int(needed)
    short, counted = soft_silhouette(*person, LARGE, capacity=int(needed) // 2)
    assert int(counted) == int(needed)  # tells that the list was too short
    assert not torch.allclose(short, alpha)


def test_the_gradient_moves_the_mesh_towards_what_is_to_be_covered(
    person: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    pixels, depth, faces = person
    shift = torch.zeros(2, requires_grad=True)
    alpha, _ = soft_silhouette(pixels + shift, depth, faces, LARGE)
    target, _ = soft_silhouette(pixels + torch.tensor([0.8, 0.0]), depth, faces, LARGE)
    (alpha - target).square().sum().backward()
    assert shift.grad is not None
    assert shift.grad[0] < 0  # to the right
    assert shift.grad[1].abs() < 0.3 * shift.grad[0].abs()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_draws_what_the_host_draws(
    person: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    there = [part.cuda() for part in person]
    alpha, needed = soft_silhouette(*person, LARGE)
    found, _ = soft_silhouette(*there, LARGE, capacity=int(needed) + 10)
    torch.testing.assert_close(found.cpu(), alpha, atol=1e-4, rtol=0)
    same = rasterize(*there, LARGE).mask.cpu() == rasterize(*person, LARGE).mask
    assert same.float().mean() > 0.999
