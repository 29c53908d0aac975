"""overt/ops/point_voxels: bins, averages and trilinear values."""

import torch

from overt.ops.point_voxels.api import average_voxels, grid_coordinates, make_grid, read_voxels


def test_coordinates_fill_the_grid_and_stay_within() -> None:
    coords = torch.randn(3, 200, 3, generator=torch.Generator().manual_seed(0)) * 7 + 100
    places = grid_coordinates(coords, 8)
    assert places.min() >= 0
    assert places.max() <= 7
    # The furthest point from the mean is on the ball of radius r / 2 around the middle.
    reach = (places / 8 - 0.5).norm(dim=2).amax(1)
    assert (reach > 0.43).all()


def test_coordinates_without_normalisation() -> None:
    coords = torch.tensor([[[-1.0, 0.0, 0.25], [1.0, 0.0, -0.25]]])
    places = grid_coordinates(coords, 4, normalize=False)
    assert torch.allclose(places, torch.tensor([[[0.0, 2.0, 2.5], [3.0, 2.0, 1.5]]]))


def test_equal_points_lie_in_the_middle() -> None:
    places = grid_coordinates(torch.ones(1, 5, 3), 8)
    assert torch.equal(places, torch.full((1, 5, 3), 4.0))


def test_halves_are_rounded_to_even() -> None:
    grid = make_grid(torch.tensor([[[0.5, 1.5, 2.5]]]), 4)
    assert grid.bins.tolist() == [[0 * 16 + 2 * 4 + 2]]


def test_averages_are_means_of_the_points_in_a_cell() -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(2, 300, 3, generator=generator) * 3
    features = torch.randn(2, 300, 4, generator=generator)
    grid = make_grid(places, 4)
    voxels = average_voxels(features, grid).view(2, 4, 4, 4, 4)
    for cloud in range(2):
        cells = places[cloud].round().long()
        for cell in ((0, 1, 2), (3, 3, 3), (1, 1, 1)):
            mine = (cells == torch.tensor(cell)).all(1)
            assert mine.any()
            expected = features[cloud, mine].mean(0)
            torch.testing.assert_close(voxels[cloud][cell], expected)
            assert grid.occupied[cloud].view(4, 4, 4)[cell] == 1


def test_an_empty_cell_is_zero() -> None:
    grid = make_grid(torch.zeros(1, 3, 3), 4)
    voxels = average_voxels(torch.ones(1, 3, 2), grid)
    assert voxels[0, 0].tolist() == [1.0, 1.0]
    assert not voxels[0, 1:].any()
    assert int(grid.occupied.sum()) == 1


def test_reading_reproduces_linear_functions() -> None:
    side = 5
    axis = torch.arange(side, dtype=torch.float32)
    x, y, z = torch.meshgrid(axis, axis, axis, indexing="ij")
    voxels = (2 * x - 3 * y + 0.5 * z + 1).reshape(1, -1, 1)
    places = torch.rand(1, 80, 3, generator=torch.Generator().manual_seed(0)) * (side - 1)
    places[0, 0] = side - 1  # the last cell: nothing beyond it is read
    found = read_voxels(voxels, make_grid(places, side))
    expected = places @ torch.tensor([2.0, -3.0, 0.5]) + 1
    torch.testing.assert_close(found[..., 0], expected, atol=1e-5, rtol=1e-5)


def test_reading_is_the_transpose_of_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    grid = make_grid(torch.rand(2, 30, 3, generator=generator) * 3, 4)
    voxels = torch.randn(2, 64, 3, generator=generator, requires_grad=True)
    gradient = torch.randn(2, 30, 3, generator=generator)
    read_voxels(voxels, grid).backward(gradient)
    # <A v, g> = <v, A^T g>
    left = (read_voxels(voxels, grid) * gradient).sum()
    torch.testing.assert_close(left, (voxels * voxels.grad).sum())
