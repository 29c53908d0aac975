"""CoTracker3 (arXiv:2410.11831): tracks points through a video by iterative refinement.

Letters: B batch, T frames, N points, L pyramid levels, C feature channels; P and S as in
`overt/ops/correlation/taps.py`. "Cells" are positions on the finest feature map: pixels divided by
the stride.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from overt.errors import DataError
from overt.nn.embedding import fourier_encoding, sine_time_embedding
from overt.nn.reuse import reused
from overt.ops.correlation.api import correlate, result_width
from overt.ops.correlation.taps import SquareTaps, mix_taps
from overt.ops.dispatch import compute_type
from overt.recipes.cotracker3.blocks import FeatureNetwork, Perceptron, UpdateTransformer
from overt.recipes.cotracker3.pyramid import (
    Compare,
    FeatureTable,
    Pyramid,
    in_halves,
    index_pyramid,
)

MOTION_DEGREES = 10  # relative motion is encoded at frequencies 2^0 .. 2^9
MOTION_WIDTH = 4 * (1 + 2 * MOTION_DEGREES)  # two differences in x and y, each with its sines
FRAMES_PER_CHUNK = 200  # bounds the memory of the feature network on long videos
FRAMES_RECOMPUTED = 16  # and in a training step that computes the features twice


class Estimate(NamedTuple):
    """Estimated positions after one iteration."""

    tracks_xy: Tensor  # (B, T, N, 2) pixels
    visibility: Tensor  # (B, T, N) logits
    confidence: Tensor  # (B, T, N) logits

    def frames(self, start: int, stop: int) -> Estimate:
        """Return the estimate from frame `start` up to, but excluding, frame `stop`."""
        return Estimate(*(part[:, start:stop] for part in self))


class TrainData(NamedTuple):
    """Input of the losses: every iteration of every window."""

    windows: list[list[Estimate]]
    valid_mask: Tensor  # (B, T, N): 1 where a point is supervised


class Tracks(NamedTuple):
    """Output of the tracker."""

    tracks_xy: Tensor  # (B, T, N, 2) pixels
    visibility: Tensor  # (B, T, N) probabilities
    confidence: Tensor  # (B, T, N) probabilities
    train_data: TrainData | None

    @classmethod
    def from_estimate(cls, estimate: Estimate, train_data: TrainData | None) -> Tracks:
        """Return the last estimate, with probabilities instead of logits."""
        tracks_xy, visibility, confidence = estimate
        return cls(tracks_xy, visibility.sigmoid(), confidence.sigmoid(), train_data)


class Repeated(NamedTuple):
    """What runs in every iteration and window of a forward pass."""

    compare: Compare
    propose: Callable[[Tensor], Tensor]  # tokens to updates


def recomputed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Checkpoint the function: store only its inputs and recompute it in the backward pass."""
    # Nothing in the model uses random numbers.
    return partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)


class MotionEncoding(nn.Module):
    """Encode motion between frames, (B, N, T, 2) cells, as sines (B, N, T, MOTION_WIDTH)."""

    frequencies: Tensor  # (MOTION_DEGREES,)
    motion_scale: Tensor  # (4,) cells per unit of encoded motion

    def __init__(self, motion_scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("motion_scale", motion_scale, persistent=False)
        frequencies = 2.0 ** torch.arange(MOTION_DEGREES)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, cells_xy: Tensor) -> Tensor:
        return fourier_encoding(relative_motion(cells_xy) / self.motion_scale, self.frequencies)


class TokenParts(nn.Module):
    """Concatenate everything known about each point in each frame into one token."""

    def forward(
        self,
        visibility: Tensor,  # (B, N, T) logits
        confidence: Tensor,  # (B, N, T) logits
        correlation: Tensor,  # (B, N, L, T, corr_out)
        motion: Tensor,  # (B, N, T, MOTION_WIDTH)
        time_embedding: Tensor,  # (1, T, token width)
    ) -> Tensor:
        parts = [
            visibility.unsqueeze(-1),
            confidence.unsqueeze(-1),
            correlation.transpose(2, 3).flatten(-2),  # (B, N, T, L * corr_out)
            motion,
        ]
        # Already in the type of the linear layer that reads them.
        return (torch.cat(parts, dim=-1) + time_embedding).to(compute_type(motion))


class CoTracker3(nn.Module):
    """Shared parts of both trackers: encode, look up, refine.

    All defaults are those of the released checkpoints and their state-dict keys.
    """

    computed_tensors = ("time_emb",)  # sinusoids: a file of another window length keeps ours

    time_emb: Tensor  # (1, window_len, token width)
    level_scale: Tensor  # (L,) cells of the finest level per cell

    def __init__(
        self,
        window_len: int = 8,
        stride: int = 4,
        corr_radius: int = 3,
        corr_levels: int = 4,
        num_virtual_tracks: int = 64,
        model_resolution: Sequence[int] = (384, 512),
        linear_layer_for_vis_conf: bool = True,
        latent_dim: int = 128,
        hidden_size: int = 384,
        num_heads: int = 8,
        time_depth: int = 3,
        space_depth: int = 3,
        mlp_ratio: float = 4.0,
        corr_hidden: int = 384,
        corr_out: int = 256,
        recompute: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.stride = stride
        self.recompute = recompute  # what is computed again in the backward pass, not kept
        self.corr_levels = corr_levels
        token_width = 2 + corr_levels * corr_out + MOTION_WIDTH
        self.register_buffer("time_emb", sine_time_embedding(window_len, token_width)[None])
        self.register_load_state_dict_pre_hook(_keep_own_time_emb)  # type: ignore[no-untyped-call]

        height, width = model_resolution
        scale = torch.tensor([width, height, width, height]) / stride
        # Kept out of the compiled graph, which would recompute the sines for every element of a
        # token.
        self.motion = MotionEncoding(scale)
        self.token_parts = TokenParts()
        self.table = FeatureTable(corr_levels)
        self.register_buffer("level_scale", 2.0 ** torch.arange(corr_levels), persistent=False)

        self.fnet = FeatureNetwork(latent_dim, stride, recompute_normed="normed" in recompute)
        self.updateformer = UpdateTransformer(
            token_width,
            hidden_size,
            num_heads,
            time_depth,
            space_depth,
            mlp_ratio,
            num_virtual_tracks,
            linear_layer_for_vis_conf,
            recompute_hidden="hidden" in recompute,
        )
        self.square_taps = SquareTaps(corr_radius)
        samples = (2 * corr_radius + 1) ** 2
        self.corr_mlp = Perceptron(
            samples**2, corr_hidden, corr_out, approximate="none", groups=samples
        )

    def encode(self, video: Tensor) -> Pyramid:
        """Encode every frame of a video (B, T, 3, H, W) in 0..255."""
        batch, frames, _, height, width = video.shape
        if frames == 0:
            raise DataError("a video of 0 frames: there is nothing to track in it")
        smallest = self.stride * 2 ** (self.corr_levels - 1)
        if height % self.stride or width % self.stride or min(height, width) < smallest:
            raise DataError(
                f"frames of {height} x {width} pixels: height and width must be multiples of "
                f"model.stride={self.stride} and at least {smallest}, so that "
                f"model.corr_levels={self.corr_levels} levels fit; resize or crop the video"
            )
        images = video.flatten(0, 1)
        again = "features" in self.recompute and torch.is_grad_enabled()
        count = -(-len(images) // (FRAMES_RECOMPUTED if again else FRAMES_PER_CHUNK))
        encode = recomputed(self.fnet) if again else self.fnet
        maps = [encode(chunk) for chunk in images.chunk(count)]
        # (B * T, C, H / stride, W / stride)
        cells = self.table(torch.cat(maps) if len(maps) > 1 else maps[0])
        size = (height // self.stride, width // self.stride)
        return index_pyramid(cells, batch, frames, size, self.corr_levels)

    def look_up(
        self, pyramid: Pyramid, map_rows: Tensor, cells_xy: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Read the squares around positions (B, N, T', 2) from the maps (B, N or 1, L, T').

        Returns cells (B, N, L, T', S*S, C) and the weights (B, N, L, T', 2, P, S) that mix them.
        """
        centres = cells_xy.unsqueeze(2) / self.level_scale[:, None, None]  # (B, N, L, T', 2)
        numbers, weights = self.square_taps(centres, pyramid.sizes_xy.unsqueeze(1))
        rows = map_rows.unsqueeze(-1) + numbers  # (B, N, L, T', S*S)
        cells = pyramid.cells.index_select(0, rows.flatten()).view(*rows.shape, -1)
        return cells, weights

    def query_features(self, pyramid: Pyramid, frames: Tensor, cells_xy: Tensor) -> Tensor:
        """Return the appearance of each point: P*P features around its query, (B, N, L, P*P, C).

        `frames` (B, N) are integers, clamped to the video; `cells_xy` is (B, N, 2).
        """
        if frames.shape[1] == 0:
            raise DataError("0 queries: give at least one point to follow, (frame, x, y)")
        frames = frames.clamp(0, pyramid.map_rows.shape[2] - 1)
        index = frames.unsqueeze(1).expand(-1, self.corr_levels, -1)  # (B, L, N)
        map_rows = pyramid.map_rows.gather(2, index).transpose(1, 2).unsqueeze(3)
        cells, weights = self.look_up(pyramid, map_rows, cells_xy.unsqueeze(2))
        # Computed once and used in every iteration, so in full precision.
        with torch.autocast(cells.device.type, enabled=False):
            return mix_taps(weights, cells).squeeze(3)

    def correlate(self, pyramid: Pyramid, support: Tensor, cells_xy: Tensor) -> Tensor:
        """Correlate the squares around positions (B, N, T, 2) with those of the queries, all pairs.

        In the result, (B, N, L, T, P*P * P*P), the frame's samples come before the query's, which
        are padded with zeros on CUDA.
        """
        centres = cells_xy.unsqueeze(2) / self.level_scale[:, None, None]  # (B, N, L, T, 2)
        return correlate(
            pyramid.cells,
            pyramid.cells_used,
            support,
            pyramid.map_rows,
            pyramid.sizes_xy,
            centres,
            self.square_taps,
            pyramid.shared,
        )

    def repeated(self, pyramid: Pyramid) -> Repeated:
        """Return what runs in every iteration and window of a forward pass."""
        again = "update" in self.recompute and torch.is_grad_enabled()
        propose = recomputed(self.updateformer) if again else reused(self.updateformer)
        mlp = self.corr_mlp

        def compare(*inputs: Any) -> Tensor:
            output: Tensor = mlp(self.correlate(*inputs))
            return output

        if "correlation" not in self.recompute or not torch.is_grad_enabled():
            return Repeated(compare if pyramid.shared is None else in_halves(compare), propose)
        weight = mlp.first_weight(result_width(pyramid.cells, self.square_taps.radius))
        weight = weight.to(compute_type(weight))

        def first(*inputs: Any) -> Tensor:
            return F.linear(self.correlate(*inputs), weight, mlp.fc1.bias)

        def compare_again(*inputs: Any) -> Tensor:
            # The correlation volume is large; only the small output of the first layer is stored.
            return mlp.finish(recomputed(first)(*inputs))

        return Repeated(in_halves(compare_again), propose)

    def time_embedding(self, frames: int) -> Tensor:
        """Return the time embedding, (1, frames, token width), interpolated to `frames`."""
        if frames == self.time_emb.shape[1]:
            return self.time_emb
        return F.interpolate(self.time_emb.mT, frames, mode="linear", align_corners=False).mT

    def refine(
        self,
        pyramid: Pyramid,
        support: Tensor,  # (B, N, L, P*P, C)
        cells_xy: Tensor,  # (B, N, T, 2) float32
        visibility: Tensor,  # (B, N, T) logits, float32
        confidence: Tensor,  # (B, N, T) logits, float32
        iters: int,
        repeated: Repeated,
    ) -> list[Estimate]:
        """Refine an initial estimate `iters` times; return the estimate after each iteration."""
        time_embedding = self.time_embedding(cells_xy.shape[2])
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Requires a gradient that is never used, so that one compiled program serves all
            # iterations.
            visibility, confidence = (
                logits if logits.requires_grad else logits.detach().requires_grad_()
                for logits in (visibility, confidence)
            )
        estimates = []
        for _ in range(iters):
            cells_xy = cells_xy.detach()
            correlation = repeated.compare(pyramid, support, cells_xy)
            motion = self.motion(cells_xy)
            tokens = self.token_parts(visibility, confidence, correlation, motion, time_embedding)
            # Under autocast the update has low precision; the sums stay float32.
            update = repeated.propose(tokens)
            cells_xy = cells_xy + update[..., :2]
            visibility = visibility + update[..., 2]
            confidence = confidence + update[..., 3]
            estimates.append(
                Estimate(
                    (cells_xy * self.stride).transpose(1, 2),
                    visibility.transpose(1, 2),
                    confidence.transpose(1, 2),
                )
            )
        return estimates


class CoTracker3Offline(CoTracker3):
    """The offline tracker, which sees the whole video at once."""

    def forward(
        self,
        video: Tensor,  # (B, T, 3, H, W) in 0..255, uint8 or float
        queries: Tensor,  # (B, N, 3): frame, x, y in pixels
        iters: int = 4,
        is_train: bool = False,
    ) -> Tracks:
        """Track the queried points through all frames, before and after the query."""
        return self.track(self.encode(video), queries, iters, is_train)

    def track(
        self, pyramid: Pyramid, queries: Tensor, iters: int, is_train: bool = False
    ) -> Tracks:
        """Do the same for an encoded video."""
        estimates = self.estimates(pyramid, queries, iters)
        last = estimates[-1]
        train_data = None
        if is_train:
            train_data = TrainData([estimates], torch.ones_like(last.visibility))
        return Tracks.from_estimate(last, train_data)

    def estimates(
        self, pyramid: Pyramid, queries: Tensor, iters: int, start: Estimate | None = None
    ) -> list[Estimate]:
        """Return the estimate after each iteration; the first one refines `start`.

        Without it, every point is at its query in all frames.
        """
        query_xy = queries[..., 1:].float() / self.stride
        support = self.query_features(pyramid, queries[..., 0].long(), query_xy)
        pyramid = pyramid.after_queries()
        if start is None:
            cells_xy = query_xy.unsqueeze(2).expand(-1, -1, pyramid.map_rows.shape[2], -1)
            visibility = confidence = torch.zeros_like(cells_xy[..., 0])
        else:
            tracks_xy, visibility, confidence = (part.transpose(1, 2) for part in start)
            cells_xy = tracks_xy / self.stride
        repeated = self.repeated(pyramid)
        return self.refine(pyramid, support, cells_xy, visibility, confidence, iters, repeated)


def relative_motion(positions_xy: Tensor) -> Tensor:
    """Return differences to the next and the previous frame, (..., T, 2) to (..., T, 4)."""
    step = positions_xy[..., :-1, :] - positions_xy[..., 1:, :]
    return torch.cat([F.pad(step, (0, 0, 0, 1)), F.pad(-step, (0, 0, 1, 0))], dim=-1)


def _keep_own_time_emb(module: CoTracker3, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Accept a checkpoint with another window length: the table is computed, not learned."""
    loaded = state.get(f"{prefix}time_emb")
    window_len, width = module.time_emb.shape[1:]
    if loaded is not None and loaded.shape[2:] == (width,) and loaded.shape[1] != window_len:
        state[f"{prefix}time_emb"] = module.time_emb
