"""LBM: frame by frame, each point independently, with two short memories per point.

Letters: B clips, T frames, N points, M entries of a memory, C channels, P cells, L layers. Points
are (x, y) in pixels, queries (t, x, y). arXiv:2509.16527.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from overt.nn.reuse import reused
from overt.recipes.lbm.backbone import STRIDE, Backbone
from overt.recipes.lbm.layer import Memory
from overt.recipes.lbm.loss import Prediction
from overt.recipes.lbm.pyramid import read_points
from overt.recipes.lbm.transformer import Entry, Estimate, FrameMaps, Transformer


class LBM(nn.Module):
    """The tracker; `forward` tracks points through a clip, as in training."""

    def __init__(
        self,
        input_size: tuple[int, int] = (384, 512),
        embed_dim: int = 256,
        backbone_width: int = 64,
        num_heads: int = 4,
        num_levels: int = 4,
        num_neighbors: int = 9,
        top_k_regions: int = 9,
        num_layers: int = 3,
        memory_size: int = 12,
        dropout: float = 0.1,
        random_memory_mask_drop: float = 0.1,
        visible_threshold: float = 0.8,
        temperature: float = 0.05,
        recompute: str = "none",
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.memory_size = memory_size
        self.visible_threshold = visible_threshold
        # What the backward pass recomputes: nothing; what points sample from each frame, by a
        # compiled transformer; or everything except the state between frames.
        self.recompute = recompute
        self.backbone = Backbone(input_size, embed_dim, backbone_width, recompute != "none")
        self.transformer = Transformer(
            input_size,
            embed_dim,
            num_heads,
            num_levels,
            num_neighbors,
            top_k_regions,
            num_layers,
            memory_size,
            dropout,
            random_memory_mask_drop,
            temperature,
        )

    def forward(
        self,
        video: Tensor,  # (B, T, 3, H, W) in 0..255, uint8 or float
        queries: Tensor,  # (B, N, 3): frame, x, y in pixels of the video; the frame is floored
        cells: Tensor | None = None,  # (B, T, N) the true cell of each point, for its entropy
    ) -> Prediction:
        batch, frames, _, height, width = video.shape
        features = self.backbone(video.flatten(0, 1))  # (B * T, h, w, C)
        query_frames = queries[..., 0].floor().long()  # (B, N)
        positions_xy = self.to_model_pixels(queries[..., 1:], (height, width))
        clips = torch.arange(batch, device=video.device).unsqueeze(1)
        query = self.read_queries(features, clips * frames + query_frames, positions_xy)

        clip = torch.unflatten(features, 0, (batch, frames))
        entries = [self._no_entry(query)] * self.memory_size
        maps: list[FrameMaps] = []
        if self.recompute == "none" or not torch.is_grad_enabled():
            maps = self._maps_of_clip(features, batch)  # once, for all frames together
        transformer = self.transformer if self.recompute == "frames" else reused(self.transformer)
        seeds: tuple[Tensor | None, ...] = (None,) * frames
        if self.training:
            # One seed per frame, sampled on the device, so that a recomputed frame drops the same
            # entries.
            seeds = torch.randint(2**62, (frames,), device=video.device).unbind(0)
        estimates, entropies = [], []
        for time, frame in enumerate(clip.unbind(1)):
            arguments = (
                transformer,
                query,
                entries[-self.memory_size :],
                maps[time] if maps else frame,
                query_frames <= time,
                cells[:, time] if cells is not None else None,
                seeds[time],
            )
            if self.recompute == "frames" and torch.is_grad_enabled():
                outcome = checkpoint(
                    self.track_frame, *arguments, use_reentrant=False, preserve_rng_state=False
                )
            else:
                outcome = self.track_frame(*arguments)
            estimate, entry, entropy = outcome
            estimates.append(estimate)
            entropies.append(entropy)
            entries.append(entry)
        return _over_time(estimates, entropies if cells is not None else None)

    def track_frame(
        self,
        transformer: Callable[..., Any],  # the model's
        query: Tensor,  # (B, N, C)
        entries: list[Entry],  # M, the oldest first
        frame: Tensor | FrameMaps,  # features (B, h, w, C), or what is made of them
        has_started: Tensor,  # (B, N) bool: the query's frame has come
        cells: Tensor | None,  # (B, N)
        seed: Tensor | None,  # () int64, of what is dropped in training
    ) -> tuple[Estimate, Entry, Tensor | None]:
        """Process one frame; return estimate, memory entries and entropies (L, B, N)."""
        # Stacked frame by frame: the gradients of earlier frames are then added without gaps.
        stacks = (torch.stack(parts) for parts in zip(*entries, strict=True))  # (M, B, N, ...)
        memory = Memory(*(stack.movedim(0, 2) for stack in stacks))
        estimate, collision, stream, entropy = transformer(query, memory, frame, seed, cells)
        entry = Entry(
            collision.to(query.dtype),
            stream.to(query.dtype),
            ~has_started | ~self.is_visible(estimate.visibility),
        )
        # The correlations are no longer needed; nothing of their size leaves the frame.
        layers = tuple(
            layer._replace(correlation=layer.correlation.new_empty(0)) for layer in estimate.layers
        )
        return estimate._replace(layers=layers), entry, entropy

    def is_visible(self, logits: Tensor) -> Tensor:
        """Return where a point is confidently visible."""
        return torch.sigmoid(logits.float()) >= self.visible_threshold

    def read_queries(self, features: Tensor, frames: Tensor, positions_xy: Tensor) -> Tensor:
        """Sample features (..., C) at positions (..., 2) in model pixels from the maps `frames`."""
        return read_points(features, frames, positions_xy / STRIDE - 0.5)

    def to_model_pixels(self, points_xy: Tensor, size: tuple[int, int]) -> Tensor:
        """Convert positions (..., 2) in a video of (height, width) to model pixels.

        Divided first, so that a point on the right edge maps exactly to the model's edge, outside
        its grid.
        """
        x, y = points_xy.unbind(-1)
        height, width = self.input_size
        return torch.stack([x / size[1] * width, y / size[0] * height], dim=-1)

    def to_video_pixels(self, points_xy: Tensor, size: tuple[int, int]) -> Tensor:
        """Convert positions (..., 2) in model pixels to pixels of a video of (height, width)."""
        x, y = points_xy.unbind(-1)
        height, width = self.input_size
        return torch.stack([x / width * size[1], y / height * size[0]], dim=-1)

    def _no_entry(self, query: Tensor) -> Entry:
        # Zeros with the dtype of later entries and part of the graph, so that to a compiler the
        # first frame is like all others.
        nothing = query * 0
        ignored = torch.ones(query.shape[:2], dtype=torch.bool, device=query.device)
        return Entry(nothing, nothing, ignored)

    def _maps_of_clip(self, features: Tensor, batch: int) -> list[FrameMaps]:
        """Compute values and guides of all frames at once, then run frame by frame."""
        maps = self.transformer.frame_maps(features)

        def by_frame(part: Tensor) -> tuple[Tensor, ...]:
            return torch.unflatten(part, 0, (batch, -1)).unbind(1)

        values = zip(*map(by_frame, maps.values), strict=True)
        guides = zip(*map(by_frame, maps.guides), strict=True)
        return [FrameMaps(*pair) for pair in zip(values, guides, strict=True)]


def _over_time(estimates: list[Estimate], entropies: list[Tensor] | None) -> Prediction:
    def stack(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, dim=1)

    layers = range(len(estimates[0].layers))
    return Prediction(
        stack([estimate.points_xy for estimate in estimates]),
        stack([estimate.visibility for estimate in estimates]),
        stack([estimate.rho for estimate in estimates]),
        tuple(
            stack([estimate.layers[number].points_xy for estimate in estimates])
            for number in layers
        ),
        tuple(stack([estimate.layers[number].rho for estimate in estimates]) for number in layers),
        torch.stack(entropies, dim=2) if entropies is not None else None,
    )
