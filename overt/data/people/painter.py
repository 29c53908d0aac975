"""Render pictures of dressed people on a device, with labels of every pixel.

Letters: B pictures, V vertices, S pixels of a side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from overt.data.people.backdrops import (
    Photographs,
    Surroundings,
    camera_effects,
    paint_backdrops,
    paint_shapes,
)
from overt.data.people.outfits import Looks, Tailor, shade
from overt.data.people.render import SUPERSAMPLING, Painted
from overt.geometry.body import BodyModel
from overt.geometry.silhouette import Raster, part_masks, rasterize

# The fine pixels whose centers coincide with those of coarse ones, of (B, 2 S, 2 S).
COARSE = (slice(None), slice(None, None, SUPERSAMPLING), slice(None, None, SUPERSAMPLING))


class Painter:
    """Dresses and renders bodies of one model, on the model's device."""

    def __init__(self, model: BodyModel, size: int, backgrounds: str | None = None) -> None:
        self.model, self.size = model, size
        self.tailor = Tailor(model)
        self.photographs = Photographs(backgrounds)
        self.device = model.template.device

    def render(
        self,
        pixels: Tensor,  # (B, V, 2)
        depth: Tensor,  # (B, V)
        vertices: Tensor,  # (B, V, 3) dressed, in the camera frame
        looks: Looks,
        surroundings: Surroundings,
        perspective: bool = True,
    ) -> tuple[Tensor, Raster]:
        """Return pictures (B, 3, S, S) uint8, and faces and depth of their fine pixels."""
        batch, side = len(pixels), SUPERSAMPLING * self.size
        faces = self.model.faces
        raster = rasterize(pixels * SUPERSAMPLING, depth, faces, (side, side), perspective)
        behind = paint_backdrops(surroundings.backdrop, self.size)
        picture = F.interpolate(behind, (side, side), mode="bilinear").flatten(2)
        covered = raster.mask.flatten().nonzero().squeeze(1)
        person, pixel = covered // side**2, covered % side**2
        colors = shade(raster, covered, vertices, self.tailor, looks).clamp(0, 1)
        picture[person, :, pixel] = colors
        picture = picture.view(batch, 3, side, side)
        # The center of every second fine pixel coincides with that of a coarse one.
        picture = F.avg_pool2d(picture, 3, SUPERSAMPLING, 1, count_include_pad=False)
        color, is_hidden = paint_shapes(surroundings.occluder, self.size)
        picture = torch.where(is_hidden, color, picture)
        picture = camera_effects(picture, surroundings.lens, surroundings.noise)
        return (255 * picture).round().to(torch.uint8), raster

    def hidden(self, surroundings: Surroundings) -> Tensor:
        """Return the pixels (B, S, S) in which an occluder stands before everything."""
        return paint_shapes(surroundings.occluder, self.size)[1][:, 0]

    @torch.no_grad()
    def paint(
        self,
        pixels: Tensor,
        depth: Tensor,
        vertices: Tensor,
        looks: Looks,
        surroundings: Surroundings,
        perspective: bool = True,
    ) -> Painted:
        """Render pictures, and part and depth of each pixel; occluded pixels are background."""
        levels, raster = self.render(pixels, depth, vertices, looks, surroundings, perspective)
        hidden = self.hidden(surroundings)
        parts = part_masks(raster, self.model.faces, self.model.part)[COARSE].masked_fill(hidden, 0)
        meters = visible_depth(raster, hidden)
        pictures = levels.permute(0, 2, 3, 1)
        return Painted(pictures.cpu().numpy(), parts.cpu().numpy(), meters.cpu().numpy())


def visible_depth(raster: Raster, hidden: Tensor) -> Tensor:
    """Return meters (B, S, S), infinite on background and occluders."""
    return raster.depth[COARSE].masked_fill(hidden, torch.inf)
