"""PoseNet's own silhouette of a person, from which `overt estimate` refines the camera.

It shows the body without clothes, also where something hides it: what the camera solve compares the
mesh with. The labels follow from pose, shape, depth and keypoints, so no mask files are needed.
Letters: B people, D features, M pixels of a silhouette's side, S pixels of the crop's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.data.people.crops import Crop
from overt.geometry.body import BodyModel
from overt.geometry.silhouette import rasterize
from overt.ops.convolve import Conv2d
from overt.ops.exact import exact_products
from overt.recipes.blade.camera import LIMB_JOINTS, pelvis_relative

ZOOM = 4  # pixels of a silhouette along a cell of the finest map
FEWEST_KEYPOINTS = 4  # of a label, that determine its camera


class Silhouettes(NamedTuple):
    """Labels of some people."""

    masks: Tensor  # (B, M, M) bool
    known: Tensor  # (B,) bool; false with too few keypoints in the crop


class SilhouetteHead(nn.Module):
    """Decode maps of several sizes to one logit per pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = Conv2d(width, width // 2, 3, padding=1)
        self.pixels = Conv2d(width // 2, ZOOM**2, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:  # (B, D, h, w) each, finest first; (B, M, M)
        finest, *coarser = maps
        for level in coarser:
            finest = finest + F.interpolate(level, finest.shape[2:])
        return F.pixel_shuffle(self.pixels(F.relu(self.mix(finest))), ZOOM).float()[:, 0]


@torch.no_grad()
def true_silhouettes(
    body: BodyModel,
    rotations: Tensor,  # (B, J, 3, 3), as they are in the crop
    shape: Tensor,  # (B, 10)
    depth: Tensor,  # (B,) meters, of the pelvis
    keypoints: Tensor,  # (B, 12, 3) limb joints, 0 to 1 across the crop, and whether known
    centre: Tensor,  # (B, 2) principal point, 0 to 1 across the crop
    crop_size: int,
) -> Silhouettes:
    """Return silhouettes of labeled people, with half of the crop's pixels along a side."""
    with exact_products(depth.device):
        vertices, joints = pelvis_relative(body, shape, rotations)
        has_depth = torch.isfinite(depth)
        depth = torch.where(has_depth, depth, torch.ones_like(depth))
        focal, pelvis, known = label_camera(joints[:, LIMB_JOINTS, :], depth, keypoints, centre)
    side = crop_size // 2
    moved = vertices + pelvis[:, None]
    across = focal[:, None, None] * moved[..., :2] / moved[..., 2:] + centre[:, None]
    # From the pixels of the crop to those of the silhouette, both counted at their middles.
    pixels = (across + 0.5 / crop_size) * side - 0.5
    raster = rasterize(pixels, moved[..., 2].contiguous(), body.faces, (side, side))
    return Silhouettes(raster.mask, known & has_depth)


def label_camera(
    limbs: Tensor, depth: Tensor, keypoints: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return focal lengths (B,) in sides of the crop, pelvises (B, 3), and whether they are known.

    Exact for keypoints that are projections of the limbs (B, 12, 3): with z known, the distance
    from the principal point times z is linear in the place of a joint.
    """
    weight = keypoints[..., 2:]
    count = weight.sum(1).clamp_min(1.0)
    scaled = (keypoints[..., :2] - centre[:, None]) * (limbs[..., 2:] + depth[:, None, None])
    scaled_mean, limb_mean = ((weight * part).sum(1) / count for part in (scaled, limbs[..., :2]))
    offset = weight * (limbs[..., :2] - limb_mean[:, None])
    spread = offset.square().sum((1, 2)).clamp_min(1e-8)
    focal = (offset * (scaled - scaled_mean[:, None])).sum((1, 2)) / spread
    known = (weight.sum((1, 2)) >= FEWEST_KEYPOINTS) & (focal > 0)
    focal = torch.where(known, focal, torch.ones_like(focal))
    pelvis = torch.cat([scaled_mean / focal[:, None] - limb_mean, depth[:, None]], dim=1)
    return focal, pelvis, known


def silhouette_errors(logits: Tensor, true: Silhouettes) -> tuple[Tensor, Tensor]:
    """Return mean cross-entropy and overlap (IoU) of each person, both (B,); 0 where unknown."""
    side = true.masks.shape[-1]
    if logits.shape[-1] != side:
        size = (side, side)
        logits = F.interpolate(logits[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    entropy = F.binary_cross_entropy_with_logits(logits, true.masks.float(), reduction="none")
    predicted = logits > 0
    both, either = (part.sum((1, 2)) for part in (predicted & true.masks, predicted | true.masks))
    overlap = both / either.clamp_min(1)
    return torch.where(true.known, entropy.mean((1, 2)), 0.0), torch.where(true.known, overlap, 0.0)


def mask_in_picture(
    logits: Tensor,  # (1, M, M)
    crop: Crop,
    crop_size: int,
    size: tuple[int, int],
    scale: float,
) -> Tensor:  # (1, *size)
    """Return how likely each pixel of the picture, shrunk by `scale`, shows the person."""
    axes = [
        (torch.arange(count, device=logits.device) + 0.5) / scale - 0.5 - middle
        for count, middle in zip(size, (crop.centre[1], crop.centre[0]), strict=True)
    ]
    # -1 to 1 across the crop; its pixels are counted at their middles.
    rows, columns = (2 * axis / crop.side + 1 / crop_size for axis in axes)
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], dim=-1)[None]
    return F.grid_sample(logits.float().sigmoid()[:, None], grid, align_corners=False)[:, 0]
