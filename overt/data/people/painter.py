"""Render pictures of dressed people on a device, with labels of every pixel.

Letters: B pictures, V vertices, S pixels of a side.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from overt.data.people.backdrops import Photographs, backdrop, camera_effects, occluder
from overt.data.people.outfits import Looks, Outfit, Tailor, shade
from overt.data.people.render import SUPERSAMPLING, Painted
from overt.geometry.body import BodyModel
from overt.geometry.silhouette import part_masks, rasterize


class Painter:
    """Dresses and renders bodies of one model, on the model's device."""

    def __init__(self, model: BodyModel, size: int, backgrounds: str | None = None) -> None:
        self.model, self.size = model, size
        self.tailor = Tailor(model)
        self.photographs = Photographs(backgrounds)
        self.device = model.template.device

    def dress(self, vertices: Tensor, outfits: list[Outfit]) -> Tensor:
        """Return vertices (B, V, 3) with cloth and hair on them."""
        return self.tailor.dress(vertices, Looks(outfits, self.device))

    @torch.no_grad()
    def paint(
        self,
        pixels: Tensor,  # (B, V, 2)
        depth: Tensor,  # (B, V)
        vertices: Tensor,  # (B, V, 3) dressed, in the camera frame
        outfits: list[Outfit],
        generators: list[np.random.Generator],
        perspective: bool = True,
    ) -> Painted:
        """Render pictures, and part and depth of each pixel; occluded pixels are background."""
        batch, size, side = len(outfits), self.size, SUPERSAMPLING * self.size
        faces = self.model.faces
        raster = rasterize(pixels * SUPERSAMPLING, depth, faces, (side, side), perspective)
        back = [backdrop(size, rng, self.photographs) for rng in generators]
        picture = F.interpolate(torch.stack(back).to(self.device), (side, side), mode="bilinear")
        picture = picture.permute(0, 2, 3, 1).reshape(-1, 3)  # (B side side, 3)
        covered = raster.mask.flatten().nonzero().squeeze(1)
        looks = Looks(outfits, self.device)
        picture[covered] = shade(raster, covered, vertices, self.tailor, looks).clamp(0, 1)
        picture = picture.view(batch, side, side, 3).permute(0, 3, 1, 2)
        # The center of every second fine pixel coincides with that of a coarse one.
        picture = F.avg_pool2d(picture, 3, SUPERSAMPLING, 1, count_include_pad=False)
        subsampling = slice(None, None, SUPERSAMPLING)
        parts = part_masks(raster, faces, self.model.part)[:, subsampling, subsampling].clone()
        meters = raster.depth[:, subsampling, subsampling].clone()
        for index, rng in enumerate(generators):
            cover = occluder(size, rng)
            if cover is not None:
                cover = cover.to(self.device)
                hides = cover[3] > 0
                picture[index] = torch.where(hides, cover[:3], picture[index])
                parts[index][hides] = 0
                meters[index][hides] = torch.inf
        picture = camera_effects(picture, generators)
        levels = (255 * picture).round().to(torch.uint8).permute(0, 2, 3, 1)
        return Painted(levels.cpu().numpy(), parts.cpu().numpy(), meters.cpu().numpy())
