"""overt/ops/poisson.py: points on a sphere give a field that is 0 on it, with true gradients."""

import math

import pytest
import torch
from torch import Tensor

from overt.ops.poisson import corners, indicator_field, splat


def sphere(count: int, radius: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    normals = torch.nn.functional.normalize(torch.randn(1, count, 3, generator=generator), dim=2)
    return 0.5 + radius * normals, normals


def test_a_sphere_is_negative_inside_and_has_its_volume() -> None:
    points, normals = sphere(8000)
    field = indicator_field(points, normals, 48, 2.0)[0]
    assert float(field[0, 0, 0]) == pytest.approx(0.5)
    assert -0.6 < float(field[24, 24, 24]) < -0.5
    volume = float((field <= 0).float().mean())
    assert abs(volume / (4 / 3 * math.pi * 0.3**3) - 1) < 0.02
    # Normals may all look inward: training may begin so.
    torch.testing.assert_close(indicator_field(points, -normals, 48, 2.0)[0], field)
    # Half the points, each with twice the area, are the same sphere.
    again = indicator_field(points[:, :4000], 2 * normals[:, :4000], 48, 2.0)[0]
    assert float((again - field).abs().mean()) < 0.02


def test_weights_are_those_of_the_nodes_around_a_point() -> None:
    points = torch.tensor([[[0.0, 0.25, 0.99]]])
    index, weight = corners(points, 4)
    assert float(weight.sum()) == 1.0
    vectors = splat(torch.ones(1, 1, 3), index, weight, 4)
    assert vectors.shape == (1, 3, 4, 4, 4)
    # Beyond the last node the first one follows.
    torch.testing.assert_close(vectors[0, 0, 0, 1], torch.tensor([0.96, 0.0, 0.0, 0.04]))


def test_gradients_are_those_of_finite_differences() -> None:
    points, normals = sphere(12)
    points = points.requires_grad_()
    normals = (normals * torch.linspace(0.5, 1.5, 12)[:, None]).requires_grad_()
    target = torch.randn((1, 8, 8, 8), generator=torch.Generator().manual_seed(1))

    def loss(at: Tensor, along: Tensor) -> Tensor:
        return (indicator_field(at, along, 8, 2.0) * target).sum()

    gradients = torch.autograd.grad(loss(points, normals), (points, normals))
    step = 1e-3
    for number, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(2))
        direction = direction / direction.norm()
        moved = [[points, normals], [points, normals]]
        moved[0][number] = moved[0][number] + step * direction
        moved[1][number] = moved[1][number] - step * direction
        with torch.no_grad():
            slope = float(loss(*moved[0]) - loss(*moved[1])) / (2 * step)
        torch.testing.assert_close(
            torch.tensor(slope), (gradient * direction).sum(), rtol=0.03, atol=0.02
        )
