"""overt/geometry/vault.py: a hole in the vault is closed along its surfaces, or refused."""

import numpy as np
import pytest

from overt.data.skulls.defects import cut_defect
from overt.data.skulls.shapes import HEAD_MM, make_skull
from overt.errors import DataError
from overt.geometry.vault import interpolated_implant, vault_middle
from overt.geometry.voxels import Mask
from overt.metrics.implants import dice

SIDE = 100
AFFINE = np.diag([HEAD_MM / SIDE] * 3 + [1.0])


def ball(radius: float, wall: float, hole: float) -> tuple[Mask, Mask]:
    """Return a hollow ball with a round hole at the vertex, and the piece that closes it.

    The hole is cut toward the center.
    """
    axis = (np.arange(SIDE) - SIDE / 2) * HEAD_MM / SIDE
    x, y, z = np.meshgrid(axis, axis, axis, indexing="ij")
    distance = np.sqrt(x * x + y * y + z * z)
    shell = (distance < radius) & (distance > radius - wall) & (z > -0.2 * radius)
    cap = shell & (np.hypot(x, y) < hole / radius * distance) & (z > 0)
    return shell & ~cap, cap


@pytest.mark.parametrize(("wall", "hole"), [(6.0, 45.0), (10.0, 20.0)])
def test_a_ball_is_closed_along_both_surfaces(wall: float, hole: float) -> None:
    shell, cap = ball(80.0, wall, hole)
    implant, area = interpolated_implant(shell, AFFINE)
    assert dice(implant, cap) > 0.85
    assert not (implant & shell).any()
    exact = 2 * np.pi * 80**2 * (1 - np.sqrt(1 - (hole / 80) ** 2))  # of the cap
    # The rim is known to a voxel of 2 mm.
    assert abs(np.sqrt(area / np.pi) - np.sqrt(exact / np.pi)) < 2.0


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_a_defect_across_the_midline_is_closed(seed: int) -> None:
    skull = make_skull(np.random.default_rng(seed), SIDE)
    implant = cut_defect(skull, AFFINE, "bilateral", np.random.default_rng(seed))
    closed = interpolated_implant(skull & ~implant, AFFINE)
    assert dice(closed.implant, implant) > 0.8


def test_the_patient_may_lie_anywhere_in_the_volume() -> None:
    """Flipped axes and a shifted origin give the same voxels."""
    shell, _ = ball(80.0, 6.0, 30.0)
    expected = interpolated_implant(shell, AFFINE).implant
    flipped = AFFINE.copy()
    flipped[:, 1] *= -1
    flipped[:3, 3] = AFFINE[:3, :3] @ (0, SIDE - 1, 0) + (5.0, -70.0, 300.0)
    implant = interpolated_implant(shell[:, ::-1], flipped).implant
    assert dice(implant[:, ::-1], expected) > 0.98


def test_what_it_cannot_close_is_refused() -> None:
    shell, _ = ball(80.0, 6.0, 30.0)
    with pytest.raises(DataError, match="no hole"):
        interpolated_implant(ball(80.0, 6.0, 0.0)[0], AFFINE)
    low = shell.copy()
    low[: SIDE // 2, :, : SIDE // 2 + 30] = False  # one side, down to the base
    with pytest.raises(DataError, match="reaches below"):
        interpolated_implant(low, AFFINE)
    with pytest.raises(DataError, match="whole vault"):
        interpolated_implant(np.zeros_like(shell), AFFINE)


def test_the_middle_of_a_ball_is_below_its_top() -> None:
    shell, _ = ball(80.0, 6.0, 30.0)
    points = np.argwhere(shell) @ AFFINE[:3, :3].T
    middle = vault_middle(points)
    np.testing.assert_allclose(middle[:2], [HEAD_MM / 2] * 2, atol=2)
    assert middle[2] < points[:, 2].max() - 50
