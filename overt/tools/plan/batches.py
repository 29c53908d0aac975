"""Batches of noise in the sizes of a configuration, for the recipes that come with overt.

What a step costs depends on sizes alone, so that neither planning nor measuring needs a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overt.config import Config
from overt.data.rng import sample_rng
from overt.nested import map_tensors
from overt.recipes.blade.data import DepthBatch, PoseBatch
from overt.recipes.blade.pretext_recipe import DepthMapBatch
from overt.recipes.cotracker3.data import TrackBatch
from overt.recipes.hjepa.data import Collate, MaskedImages
from overt.recipes.lbm.data import TrackBatch as LBMBatch
from overt.recipes.pcdiff.data import CloudBatch


def tracks(config: Config, batch: int, device: torch.device) -> TrackBatch:
    """A clip of noise with points that wander about, of the sizes in the configuration."""
    data = config.settings.data
    generator = torch.Generator().manual_seed(0)
    height, width = data.crop_size
    frames, points = data.sequence_len, data.traj_per_sample
    start = torch.rand(batch, 1, points, 2, generator=generator)
    start = start * torch.tensor([width - 1.0, height - 1.0])
    steps = torch.randn(batch, frames, points, 2, generator=generator).cumsum(1)
    places = start + steps - steps[:, :1]
    visible = torch.rand(batch, frames, points, generator=generator) < 0.8
    query_frames = torch.randint(frames, (batch, points), generator=generator)
    query_xy = places.gather(1, query_frames[:, None, :, None].expand(-1, 1, -1, 2)).squeeze(1)
    video = torch.randint(256, (batch, frames, 3, height, width), generator=generator)
    return TrackBatch(
        video=video.to(torch.uint8).to(device),
        tracks=places.to(device),
        visibility=visible.to(device),
        valid=torch.ones_like(visible).to(device),
        queries=torch.cat([query_frames[..., None], query_xy], dim=-1).to(device),
        redrawn=torch.zeros(batch, device=device),
        names=("noise",) * batch,
    )


class Noise:
    """Images of noise, read like those of a folder."""

    def __init__(self, size: Sequence[int]) -> None:
        self.pixels = torch.randint(256, (3, *size), dtype=torch.uint8)

    def __len__(self) -> int:
        return 10**6

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels, 0


def masked_images(config: Config, batch: int, device: torch.device) -> Any:
    """Images of noise with masks drawn for each."""
    settings = config.settings
    source = MaskedImages(Noise(settings.data.image_size), settings)  # type: ignore[arg-type]
    samples = [source.sample(index, sample_rng(0, 0, index)) for index in range(batch)]
    return map_tensors(Collate(settings)(samples), lambda tensor: tensor.to(device))


def crops(
    config: Config, batch: int, device: torch.device
) -> DepthBatch | DepthMapBatch | PoseBatch:
    """Crops of noise: those of DepthNet, or with the labels of its pretext or of PoseNet."""
    data = config.settings.data
    generator = torch.Generator().manual_seed(0)

    def noise(size: int) -> torch.Tensor:
        pixels = torch.randint(256, (batch, 3, size, size), generator=generator)
        return pixels.to(torch.uint8).to(device)

    depth = torch.linspace(0.5, 8.0, batch, device=device)
    if "pretext" in config.recipe.name:
        images = noise(data.depth_size)
        return DepthMapBatch(images, depth[:, None, None].expand_as(images[:, 0]).clone())
    if "posenet" not in config.recipe.name:
        return DepthBatch(noise(data.depth_size), depth, torch.ones_like(depth, dtype=torch.bool))
    return PoseBatch(
        noise(data.depth_size),
        noise(data.pose_size),
        (0.3 * torch.randn(batch, 52, 3, generator=generator)).to(device),
        torch.randn(batch, 10, generator=generator).to(device),
        depth,
        torch.rand(batch, 12, 3, generator=generator).to(device),
    )


def clouds(config: Config, batch: int, device: torch.device) -> CloudBatch:
    """Double shells like a skull's, with a cap as the implant, at random times."""
    data = config.settings.data
    generator = torch.Generator().manual_seed(0)
    known, implant = data.num_known_points, data.num_implant_points
    directions = torch.randn(batch, 4 * data.num_points, 3, generator=generator)
    directions = torch.nn.functional.normalize(directions, dim=2)
    walls = torch.randint(2, (*directions.shape[:2], 1), generator=generator)
    points = directions * torch.tensor([2.4, 3.0, 2.6]) * (1 - 0.06 * walls)
    is_cap = directions[..., 2] > 0.75  # an eighth of the sphere
    skulls = [cloud[~cap][:known] for cloud, cap in zip(points, is_cap, strict=True)]
    caps = [cloud[cap][:implant] for cloud, cap in zip(points, is_cap, strict=True)]
    steps = config.settings.model.diffusion.steps
    return CloudBatch(
        torch.stack(skulls).to(device),
        torch.stack(caps).to(device),
        torch.randn(batch, implant, 3, generator=generator).to(device),
        torch.randint(steps, (batch,), generator=generator).to(device),
        ("shell",) * batch,
    )


def lbm_tracks(config: Config, batch: int, device: torch.device) -> LBMBatch:
    """Clips of noise for LBM, three points in four queried in the first frame."""
    data = config.settings.data
    generator = torch.Generator().manual_seed(0)
    height, width = data.crop_size
    frames, points = data.frames, data.points
    start = torch.rand(batch, 1, points, 2, generator=generator)
    start = start * torch.tensor([width - 1.0, height - 1.0])
    places = start + torch.randn(batch, frames, points, 2, generator=generator).cumsum(1)
    query_frames = torch.randint(frames, (batch, points), generator=generator)
    query_frames[:, points // 4 :] = 0
    query_xy = places.gather(1, query_frames[:, None, :, None].expand(-1, 1, -1, 2)).squeeze(1)
    video = torch.randint(256, (batch, frames, 3, height, width), generator=generator)
    return LBMBatch(
        video=video.to(torch.uint8).to(device),
        tracks=places.to(device),
        visibility=(torch.rand(batch, frames, points, generator=generator) < 0.8).to(device),
        valid=torch.ones(batch, points, dtype=torch.bool, device=device),
        queries=torch.cat([query_frames[..., None], query_xy], dim=-1).to(device),
        redrawn=torch.zeros(batch, device=device),
        names=("noise",) * batch,
    )


BATCHES: dict[str, Callable[[Config, int, torch.device], Any]] = {
    "blade": crops,
    "cotracker3": tracks,
    "hjepa": masked_images,
    "ijepa": masked_images,
    "lbm": lbm_tracks,
    "pcdiff": clouds,
}
