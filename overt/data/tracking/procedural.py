"""Clips rendered on the training device from photographs: frames, tracks, occlusion, queries.

A sample is just a row of random numbers, so resume, world size and accumulation cannot change it.
The formula that maps pixels to texture coordinates also maps the points, so tracks are exact. B
clips, L layers, T frames, N points, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from overt.data.tracking.clips import Positions, TrackBatch
from overt.data.tracking.procedural_scene import (
    DRAWS,
    Scene,
    draw_scene,
    pick_frame,
    pick_layer,
    to_image,
)
from overt.data.tracking.procedural_settings import BLOCK, ProceduralSettings
from overt.data.tracking.settings import KubricSettings
from overt.data.tracking.textures import load_textures
from overt.ops.layers.api import shade
from overt.ops.layers.plain import SOLID, Layer, cover, to_surface

CANDIDATES = 4  # places of the image that a query is chosen among
# A point farther from the image center than this many half sides is not supervised.
FAR = 4.0
NOISE_WORDS = (0x2C1B3C6D, 0x297A2D39)


@dataclass(frozen=True)
class Seeds:
    """Samples that have not been rendered yet."""

    numbers: Tensor  # (B, DRAWS) float32 uniform in 0..1


class ProceduralClips:
    """Training samples: random numbers, which the device turns into clips."""

    def __init__(self, settings: ProceduralSettings) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return self.settings.samples

    def sample(self, index: int, rng: np.random.Generator) -> Tensor:
        """Return the numbers that determine the clip, (DRAWS,)."""
        return torch.from_numpy(rng.random(DRAWS, dtype=np.float32))


class ClipRenderer:
    """What a recipe needs to train on rendered clips: its samples, batches, and the clips."""

    def __init__(
        self,
        settings: ProceduralSettings,
        textures: str | None,  # a folder of photographs; None: computed textures only
        size: tuple[int, int],  # (height, width) of the frames
        frames: int,
        points: int,
        positions: Positions,
    ) -> None:
        self.settings, self.folder = settings, textures
        self.size, self.frames, self.points = size, frames, points
        self.positions = positions
        self.textures: Tensor | None = None  # on the device of the last batch

    def source(self) -> ProceduralClips:
        """Return the training samples."""
        return ProceduralClips(self.settings)

    def collate(self, samples: Sequence[Tensor]) -> Seeds:
        """Make a batch of samples."""
        return Seeds(torch.stack(list(samples)))

    def example(self, size: int) -> Seeds:
        """Return a batch that reads no data."""
        return Seeds(torch.rand(size, DRAWS, generator=torch.Generator().manual_seed(0)))

    def counts(self, seeds: Seeds) -> dict[str, Tensor]:
        """Return what is known of a batch before it is rendered."""
        return {"clips": torch.tensor(float(len(seeds.numbers)))}

    def render(self, seeds: Seeds) -> TrackBatch:
        """Render the clips of a batch on its device."""
        numbers = seeds.numbers
        if self.textures is None:
            side, computed = self.settings.texture_size, self.settings.made_textures
            self.textures = load_textures(self.folder, side, computed)
        self.textures = self.textures.to(numbers.device)
        clips = make_clips(
            numbers, self.textures, self.settings, self.size, self.frames, self.points
        )
        batch = to_batch(clips)
        if self.positions != Positions.CENTRES:  # that of rendered clips
            self._convert(batch.tracks)
            self._convert(batch.queries[..., 1:])
        return batch

    def _convert(self, positions_xy: Tensor) -> None:
        """Convert positions (..., 2) in place, without a copy from the host to the device."""
        for axis, side in enumerate(reversed(self.size)):
            positions_xy[..., axis] *= (side - self.positions) / (side - Positions.CENTRES)


def renderer_of(
    data: KubricSettings, frames: int, points: int, positions: Positions
) -> ClipRenderer | None:
    """Return the renderer of the clips that `data.procedural` describes; None: clips are read."""
    if data.procedural is None:
        return None
    height, width = data.crop_size
    return ClipRenderer(data.procedural, data.textures, (height, width), frames, points, positions)


class Clips(NamedTuple):
    """Clips and their points."""

    video: Tensor  # (B, T, 3, H, W) uint8
    tracks: Tensor  # (B, T, N, 2) pixels
    visible: Tensor  # (B, T, N) bool
    near: Tensor  # (B, T, N) bool: not far outside of the image
    queries: Tensor  # (B, N, 3): frame, x, y


@torch.no_grad()
def make_clips(
    numbers: Tensor,  # (B, DRAWS)
    textures: Tensor,  # (K, S, S) int32: red, green and blue in the lower bytes
    settings: ProceduralSettings,
    size: tuple[int, int],
    frames: int,
    points: int,
) -> Clips:
    """Render the clips of some rows of random numbers and track points through them."""
    scene = draw_scene(numbers, frames, settings, min(size) / 2)
    texture_index = (scene.texture * len(textures)).long().clamp(max=len(textures) - 1)
    colored = shade(
        scene.layers, scene.texture_map, texture_index.int(), scene.color, scene.light,
        scene.shutter, textures, size,
    )  # fmt: skip
    video = _finish(colored, scene.finish, _seeds(numbers))
    return Clips(video, *follow_points(scene, settings, size, points))


def to_batch(clips: Clips) -> TrackBatch:
    """As the recipes take it."""
    batch = len(clips.video)
    return TrackBatch(
        video=clips.video,
        tracks=clips.tracks,
        visibility=clips.visible,
        valid=clips.near,
        queries=clips.queries,
        redrawn=clips.tracks.new_zeros(batch),
        names=("procedural",) * batch,
    )


# --- points ----------------------------------------------------------------------------------


def follow_points(
    scene: Scene, settings: ProceduralSettings, size: tuple[int, int], points: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Select points that are visible in their query frame; return the fields of `Clips`."""
    frames = scene.layers.shape[-1]
    frame, x, y = _candidates(scene, settings, size, points)  # (B, N, CANDIDATES)
    flat = [value.flatten(1) for value in (frame, x, y)]
    owners, u, v = _top(scene, *flat)
    owners, u, v = (torch.unflatten(value, 1, (points, -1)) for value in (owners, u, v))
    # The first candidate, or the first on a layer in front of the background.
    wants = scene.draws.uniform(points) < settings.foreground
    in_front = (owners > 0) & wants[..., None]
    index = in_front.float().argmax(-1, keepdim=True)  # 0 where there is none
    owner, u, v, frame, x, y = (
        value.gather(2, index).squeeze(2) for value in (owners, u, v, frame, x, y)
    )
    owner_layer = Layer(*pick_layer(scene.layers, owner).unbind(0))
    track_x, track_y = to_image(
        owner_layer, pick_layer(scene.forward, owner), u[:, None], v[:, None]
    )
    layers = Layer(*scene.layers[..., None].unbind(0))  # fields of (B, L, T, 1)
    covered = cover(layers, *to_surface(layers, track_x[:, None], track_y[:, None])) > SOLID
    numbers = torch.arange(scene.layers.shape[2], device=frame.device)
    in_front_of_owner = numbers[:, None] > owner[:, None]  # (B, L, N)
    hidden = (covered & in_front_of_owner[:, :, None]).any(1)  # (B, T, N)
    height, width = size
    half = min(size) / 2
    pixels_x, pixels_y = track_x * half + (width - 1) / 2, track_y * half + (height - 1) / 2
    inside = (pixels_x >= 0) & (pixels_x <= width - 1)
    inside &= (pixels_y >= 0) & (pixels_y <= height - 1)
    visible = inside & ~hidden
    # A query is visible by construction; rounding at an outline does not change that.
    visible |= frame[:, None] == torch.arange(frames, device=frame.device)[:, None]
    near = (track_x.abs() < FAR) & (track_y.abs() < FAR)
    tracks = torch.stack([pixels_x, pixels_y], -1)
    query_xy = torch.stack([x * half + (width - 1) / 2, y * half + (height - 1) / 2], -1)
    queries = torch.cat([frame[..., None].float(), query_xy], -1)
    return tracks, visible, near, queries


def _candidates(
    scene: Scene, settings: ProceduralSettings, size: tuple[int, int], points: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return candidate frames and positions (B, N, CANDIDATES) of queries."""
    frames, draws = scene.layers.shape[-1], scene.draws
    later = draws.uniform(points) >= settings.first_frame
    frame = (draws.uniform(points) * frames).long().clamp(max=frames - 1) * later
    half = min(size) / 2
    limits = [(side - 1) / 2 / half for side in (size[1], size[0])]
    # More numbers, derived from one per candidate: the row of random numbers is finite.
    first = draws.uniform(points, 2)
    steps = torch.arange(CANDIDATES, device=first.device) * 0.754877666
    second = torch.arange(CANDIDATES, device=first.device) * 0.569840291
    x = (2 * ((first[..., :1] + steps) % 1) - 1) * limits[0]
    y = (2 * ((first[..., 1:] + second) % 1) - 1) * limits[1]
    return frame[..., None].expand_as(x), x, y


def _top(scene: Scene, frame: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the foremost layer at positions (B, M) of frames, and the surface coordinates."""
    layers = Layer(*pick_frame(scene.layers, frame).unbind(0))  # fields of (B, L, M)
    u, v = to_surface(layers, x[:, None], y[:, None])
    numbers = torch.arange(scene.layers.shape[2], device=frame.device)[:, None]
    owner = torch.where(cover(layers, u, v) > SOLID, numbers, 0).amax(1)
    top_u, top_v = (value.gather(1, owner[:, None]).squeeze(1) for value in (u, v))
    return owner, top_u, top_v


# --- pixels ----------------------------------------------------------------------------------


def _finish(colored: Tensor, finish: Tensor, seeds: Tensor) -> Tensor:
    """Apply blur, grayscale, noise and compression of `Scene.finish`; uint8."""
    blur, gray, noise, step = finish[:, :, None, None, None, None].unbind(1)
    soft = F.pad(colored.flatten(0, 1), (1, 1, 1, 1), mode="replicate")
    soft = (soft[..., :-2] + 2 * soft[..., 1:-1] + soft[..., 2:]) / 4
    soft = (soft[..., :-2, :] + 2 * soft[..., 1:-1, :] + soft[..., 2:, :]) / 4
    frames = colored + blur * (soft.view_as(colored) - colored)
    frames = frames + gray * (frames.mean(2, keepdim=True) - frames)
    frames = frames + noise * _noise(frames.shape, seeds)
    frames = torch.where(step > 0, _compressed(frames, step.clamp(min=1)), frames)
    return frames.round().clamp(0, 255).to(torch.uint8)


def _noise(shape: torch.Size, seeds: Tensor) -> Tensor:
    """Return unit-variance noise per pixel and channel, from its position and the clip's seed."""
    _, frames, channels, height, width = shape
    counter = torch.arange(
        frames * channels * height * width, device=seeds.device, dtype=torch.int32
    )
    value = counter.view(1, *shape[1:]) + seeds.view(-1, 1, 1, 1, 1)
    for word in NOISE_WORDS:  # multiplications wrap around
        value = (value ^ ((value >> 15) & 0x1FFFF)) * word
    value = value ^ ((value >> 15) & 0x1FFFF)
    total = (value & 255) + ((value >> 8) & 255) + ((value >> 16) & 255)
    return (total - 382.5) / 128.0


def _seeds(numbers: Tensor) -> Tensor:
    """Return (B,) int32 from the last numbers of each row."""
    parts = (numbers[:, -2:] * 32768).int()
    return parts[:, 0] * 65536 + parts[:, 1]


def _compressed(frames: Tensor, step: Tensor) -> Tensor:
    """Quantize the frequencies of small squares, like JPEG; coarser for high frequencies."""
    order = torch.arange(BLOCK, device=frames.device, dtype=torch.float32)
    waves = torch.cos(torch.pi / BLOCK * (order + 0.5) * order[:, None]) * (2 / BLOCK) ** 0.5
    waves = torch.where(order[:, None] == 0, (1 / BLOCK) ** 0.5, waves)  # (frequency, place)
    *_, height, width = frames.shape
    blocks = frames.reshape(*_, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    blocks = torch.einsum("ki,...iwj,lj->...kwl", waves, blocks, waves)
    steps = step[..., None, None] * (0.35 + 0.16 * (order[:, None, None] + order))
    blocks = (blocks / steps).round() * steps
    blocks = torch.einsum("ki,...kwl,lj->...iwj", waves, blocks, waves)
    return blocks.reshape(frames.shape)
