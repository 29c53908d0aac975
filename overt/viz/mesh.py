"""Meshes over pictures: shaded bodies, and words written on crops."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from overt.geometry.silhouette import rasterize

COLOR = (0.55, 0.75, 0.95)
LIGHT = (0.3, -0.5, -0.8)  # direction toward it, in the camera frame
SMALL = 192  # pixels: smaller pictures are enlarged to be read


def draw_mesh(
    picture: Tensor,  # (3, H, W) uint8
    vertices: Tensor,  # (V, 3) meters in the camera frame
    faces: Tensor,  # (F, 3)
    pixels: Tensor,  # (V, 2) where the vertices are in the picture
    opacity: float = 0.8,
) -> Tensor:
    """The picture with the shaded mesh over it, (3, H, W) uint8."""
    height, width = picture.shape[-2:]
    raster = rasterize(pixels[None], vertices[None, :, 2], faces, (height, width))
    corners = vertices[faces]  # (F, 3, 3)
    normals = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    light = F.normalize(vertices.new_tensor(LIGHT), dim=0)
    bright = 0.35 + 0.65 * (F.normalize(normals, dim=-1) @ light).clamp_min(0.0)  # (F,)
    mask, face = raster.mask[0], raster.face[0].clamp_min(0)
    shade = 255 * vertices.new_tensor(COLOR)[:, None, None] * bright[face]
    mixed = opacity * shade + (1 - opacity) * picture
    return torch.where(mask, mixed, picture.to(mixed.dtype)).round().to(torch.uint8)


def write_on(picture: Tensor, text: str) -> Tensor:
    """A picture (3, H, W) uint8 with a line of text in its corner; small ones are enlarged."""
    image = Image.fromarray(picture.permute(1, 2, 0).cpu().numpy())
    factor = -(-SMALL // max(image.size))
    if factor > 1:
        size = (image.width * factor, image.height * factor)
        image = image.resize(size, Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    draw.text((5, 4), text, fill=(0, 0, 0))
    draw.text((4, 3), text, fill=(255, 255, 255))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
