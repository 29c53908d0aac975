"""Rotations: every form leads to the same matrix, and gradients are finite where forms meet."""

import math

import pytest
import torch

from overt.geometry.rotation import (
    axis_angle_to_matrix,
    compose,
    matrix_to_axis_angle,
    matrix_to_quaternion,
    matrix_to_six,
    relative_angle,
    rotate,
    rotation_about_z,
    six_to_matrix,
    skew,
)


def vectors(count: int = 200) -> torch.Tensor:
    """Directions with angles from 0 to a little over a half turn."""
    directions = torch.nn.functional.normalize(torch.randn(count, 3, dtype=torch.float64), dim=-1)
    return directions * torch.linspace(0, 3.3, count, dtype=torch.float64)[:, None]


def test_matrices_are_rotations_and_come_back() -> None:
    matrices = axis_angle_to_matrix(vectors())
    eye = torch.eye(3, dtype=torch.float64).expand_as(matrices)
    torch.testing.assert_close(matrices @ matrices.transpose(1, 2), eye)
    torch.testing.assert_close(torch.linalg.det(matrices), torch.ones(200, dtype=torch.float64))
    found = matrix_to_axis_angle(matrices)
    assert found.norm(dim=-1).max() <= math.pi + 1e-9
    torch.testing.assert_close(axis_angle_to_matrix(found), matrices)
    torch.testing.assert_close(six_to_matrix(matrix_to_six(matrices)), matrices)


def test_small_angles_are_the_matrix_exponential() -> None:
    small = vectors(50) * 1e-2
    expected = torch.linalg.matrix_exp(skew(small))
    torch.testing.assert_close(axis_angle_to_matrix(small), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("lead", [(), (2, 50), (2, 5, 10)])
def test_any_leading_dimensions(lead: tuple[int, ...]) -> None:
    """And the last two axes keep their meaning where others have three entries, too."""
    flat = vectors(math.prod(lead))
    shaped = flat.reshape(*lead, 3)
    matrices = axis_angle_to_matrix(flat)
    deep = axis_angle_to_matrix(shaped)
    torch.testing.assert_close(deep, matrices.reshape(*lead, 3, 3))
    six = matrix_to_six(matrices)
    torch.testing.assert_close(matrix_to_six(deep), six.reshape(*lead, 6))
    torch.testing.assert_close(six_to_matrix(six.reshape(*lead, 6)), deep)
    quaternions = matrix_to_quaternion(matrices)
    torch.testing.assert_close(matrix_to_quaternion(deep), quaternions.reshape(*lead, 4))
    vector = matrix_to_axis_angle(matrices)
    torch.testing.assert_close(matrix_to_axis_angle(deep), vector.reshape(*lead, 3))
    angle = relative_angle(matrices, matrices.flip(0))
    assert relative_angle(deep, matrices.flip(0).reshape(*lead, 3, 3)).shape == lead
    torch.testing.assert_close(
        relative_angle(deep, matrices.flip(0).reshape(*lead, 3, 3)), angle.reshape(lead)
    )


def test_quaternions_have_a_positive_real_part_and_length_one() -> None:
    quaternions = matrix_to_quaternion(axis_angle_to_matrix(vectors()))
    assert (quaternions[:, 0] >= 0).all()
    torch.testing.assert_close(quaternions.norm(dim=-1), torch.ones(200, dtype=torch.float64))


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-4, 1.0, math.pi])
def test_gradients_are_finite(angle: float) -> None:
    vector = torch.tensor([angle, 0.0, 0.0], requires_grad=True)
    matrix = axis_angle_to_matrix(vector)
    (matrix_to_axis_angle(matrix).sum() + relative_angle(matrix, torch.eye(3))).backward()
    assert vector.grad is not None
    assert torch.isfinite(vector.grad).all()


def test_the_relative_angle_is_the_angle_but_near_its_ends() -> None:
    about = rotation_about_z(torch.tensor([0.5, 1.0, 2.0]))
    found = relative_angle(about, torch.eye(3).expand(3, 3, 3))
    torch.testing.assert_close(found, torch.tensor([0.5, 1.0, 2.0]))
    assert relative_angle(torch.eye(3), torch.eye(3)).item() == pytest.approx(0.00707, abs=1e-5)


def test_products_of_small_matrices_are_matrix_products() -> None:
    first, second = axis_angle_to_matrix(vectors()), axis_angle_to_matrix(vectors())
    points = vectors()
    torch.testing.assert_close(compose(first, second), first @ second)
    torch.testing.assert_close(rotate(first, points), (first @ points[..., None]).squeeze(-1))
    # One matrix for many points, as in a body whose joints share a rotation.
    torch.testing.assert_close(rotate(first[0], points), points @ first[0].T)
