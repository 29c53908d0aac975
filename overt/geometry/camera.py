"""The perspective camera: projection, the camera of a crop, and its closed-form start.

Camera frame as in OpenCV: x right, y down, z forward, in meters; places in pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDS = 3


def intrinsics(focal: Tensor, centre: Tensor) -> Tensor:  # (B,), (B, 2) to (B, 3, 3)
    """The matrix K of cameras with square pixels."""
    matrix = torch.zeros(len(focal), 3, 3, dtype=focal.dtype, device=focal.device)
    matrix[:, 0, 0] = matrix[:, 1, 1] = focal
    matrix[:, :2, 2] = centre
    matrix[:, 2, 2] = 1.0
    return matrix


def project(points: Tensor, translation: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels (B, N, 2) and depths (B, N) of points (B, N, 3) moved by (B, 3), seen through K."""
    moved = points + translation[:, None]
    depth = moved[..., 2]
    image = moved @ matrix.transpose(1, 2)
    return image[..., :2] / image[..., 2:], depth


def crop_camera(
    matrix: Tensor, centre: Tensor, side: Tensor, output: int, mirrored: Tensor
) -> Tensor:
    """K (B, 3, 3) of square crops: about (B, 2), of (B,) pixels, resized to `output` pixels.

    Of a mirrored crop the points are mirrored in x by the caller.
    """
    scale = output / side
    sign = torch.where(mirrored.bool(), -scale, scale)
    factors = torch.stack([sign, scale], dim=-1)
    result = matrix.clone()
    result[:, 0, 0] = matrix[:, 0, 0] * scale
    result[:, 1, 1] = matrix[:, 1, 1] * scale
    result[:, :2, 2] = (matrix[:, :2, 2] - centre) * factors + output / 2
    return result


class CameraStart(NamedTuple):
    """A camera that fits 2D keypoints."""

    focal: Tensor  # (B,) pixels
    translation: Tensor  # (B, 3) meters


def fit_camera(
    joints: Tensor,  # (B, J, 3) meters, in the camera's orientation
    depth: Tensor,  # (B,) meters: the z of the translation
    keypoints: Tensor,  # (B, J, 2) pixels
    good: Tensor,  # (B, J) bool: which keypoints count
    image_size: tuple[int, int],  # (height, width)
) -> CameraStart:
    """Focal length and translation in x and y in closed form, by three rounds of fixed points.

    The depth of the joints is in the denominator of the first formula as in the published
    code, where it is small beside the pixels. The focal length needs two keypoints apart: with one
    it keeps the start, and without any so does the translation.
    """
    height, width = image_size
    centre = joints.new_tensor([width / 2, height / 2])
    weight = good.to(joints.dtype)[..., None]  # (B, J, 1)
    count = weight.sum(1).clamp_min(1.0)  # (B, 1)

    def mean(values: Tensor) -> Tensor:  # (B, J, C) to (B, C), over good joints
        return (torch.where(weight > 0, values, 0.0)).sum(1) / count

    focal = joints.new_full((len(joints),), float(max(height, width)))
    translation = torch.zeros_like(joints[:, 0])
    translation[:, 2] = depth
    has_any = good.any(1)
    spread = (keypoints - mean(keypoints)[:, None]).square().sum(-1)  # (B, J)
    has_spread = mean(spread[..., None])[:, 0] > 0
    for _ in range(ROUNDS):
        moved = joints + translation[:, None]
        pixels = focal[:, None, None] * moved[..., :2] / moved[..., 2:] + centre
        camera_points = torch.cat([pixels, moved[..., 2:]], dim=-1)
        extent = (camera_points - mean(camera_points)[:, None]).square().sum(-1)
        ratio = mean((spread / extent.clamp_min(1e-12)).sqrt()[..., None])[:, 0]
        focal = torch.where(has_spread, focal * ratio, focal)
        offsets = (keypoints - centre) * moved[..., 2:] / focal[:, None, None] - joints[..., :2]
        shift = torch.where(has_any[:, None], mean(offsets), translation[:, :2])
        translation = torch.cat([shift, translation[:, 2:]], dim=-1)
    return CameraStart(focal, translation)
