"""The losses of both stages, as sums over samples; the recipe divides by the global count.

Letters: B samples, J joints, V vertices. Sections 3.2 and 3.3 of arXiv:2412.08640.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overt.geometry.body import BODY_JOINTS
from overt.geometry.rotation import relative_angle


def depth_errors(predicted: Tensor, true: Tensor, known: Tensor) -> Tensor:
    """Return |predicted - true| / true of each sample, all (B,); 0 without ground truth."""
    # Divided by one without ground truth: a missing depth may be stored as zero.
    safe = torch.where(known, true, torch.ones_like(true))
    return torch.where(known, (predicted - safe).abs() / safe, 0.0)


class Bodies(NamedTuple):
    """Bodies in the form that the losses compare, relative to the pelvis."""

    rotations: Tensor  # (B, 22, 3, 3): root, then the body's joints relative to their parents
    shape: Tensor  # (B, 10)
    joints: Tensor  # (B, J, 3) meters
    vertices: Tensor  # (B, V, 3) meters


class Weights(NamedTuple):
    root: float = 1.0
    body_pose: float = 1.0
    shape: float = 1.0
    body_joint: float = 5.0
    vert: float = 5.0


def pose_losses(predicted: Bodies, true: Bodies, weights: Weights) -> dict[str, Tensor]:
    """Return the five weighted terms, each a sum of per-sample means."""
    angles = relative_angle(predicted.rotations, true.rotations)  # (B, 22)
    body = slice(0, BODY_JOINTS)
    joints = (predicted.joints[:, body] - true.joints[:, body]).abs()
    return {
        "root_loss": weights.root * angles[:, 0].sum(),
        "body_pose_loss": weights.body_pose * angles[:, 1:].mean(1).sum(),
        "shape_loss": weights.shape * (predicted.shape - true.shape).abs().mean(1).sum(),
        "body_joint_loss": weights.body_joint * joints.mean((1, 2)).sum(),
        "vert_loss": weights.vert * (predicted.vertices - true.vertices).abs().mean((1, 2)).sum(),
    }


@torch.no_grad()
def pose_distances(predicted: Bodies, true: Bodies) -> dict[str, Tensor]:
    """Return mean joint and vertex errors in meters, summed over samples; for logs only."""
    body = slice(0, BODY_JOINTS)
    joints = (predicted.joints[:, body] - true.joints[:, body]).norm(dim=-1)
    vertices = (predicted.vertices - true.vertices).norm(dim=-1)
    return {
        "mpjpe_all_body_joints": joints.mean(1).sum(),
        "mean_vert_error": vertices.mean(1).sum(),
    }
