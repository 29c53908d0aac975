"""What mirroring or turning a picture does to the pose of the person in it.

Poses are axis-angle vectors; rows of `body_pose` are the joints 1 to 21, the pelvis is joint 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.geometry.rotation import rotation_about_z

# Left and right joints that change places, counted from the pelvis.
PAIRS = ((1, 2), (4, 5), (7, 8), (10, 11), (13, 14), (16, 17), (18, 19), (20, 21))
_MIRRORED_ROWS = list(range(21))
for _left, _right in PAIRS:
    _MIRRORED_ROWS[_left - 1], _MIRRORED_ROWS[_right - 1] = _right - 1, _left - 1


def mirror_vectors(vectors: Tensor) -> Tensor:  # (..., 3)
    """Axis-angle vectors seen in a mirror that swaps left and right."""
    return vectors * vectors.new_tensor([1.0, -1.0, -1.0])


def mirror_pose(
    root: Tensor, body: Tensor, left_hand: Tensor, right_hand: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Root (..., 3), body (..., 21, 3) and hands (..., 15, 3) of the mirrored person."""
    rows = torch.tensor(_MIRRORED_ROWS, device=body.device)
    return (
        mirror_vectors(root),
        mirror_vectors(body[..., rows, :]),
        mirror_vectors(right_hand),
        mirror_vectors(left_hand),
    )


def rotate_in_plane(root: Tensor, degrees: Tensor) -> Tensor:
    """Root rotations (B, 3, 3) of people whose pictures were turned by angles (B,)."""
    return rotation_about_z(torch.deg2rad(-degrees)) @ root
