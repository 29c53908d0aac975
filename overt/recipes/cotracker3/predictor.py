"""Run a tracker on any video: resizing, support points, both directions of time.

Letters: B videos, T frames, N queried points, G support points. Section 4 of arXiv:2410.11831.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.data.tracking.clips import QUERY_MARGIN
from overt.errors import ConfigError, DataError
from overt.geometry.grid import pixel_scale, point_grid
from overt.recipes.cotracker3.model import CoTracker3Offline, Tracks
from overt.recipes.cotracker3.online import CoTracker3Online
from overt.recipes.cotracker3.pyramid import Pyramid
from overt.recipes.cotracker3.windows import since_query, sliding_windows

LOCAL_EXTENT = (50.0, 50.0)  # (height, width), pixels of the resized video
RANDOM_POINTS_SEED = 0
FRAMES_RESIZED = 8  # at a time: all frames at their full size, as floats, may not fit


class Prediction(NamedTuple):
    """Positions of points in every frame, with visibility and confidence."""

    tracks_xy: Tensor  # (B, T, N, 2) pixels of the given video
    visibility: Tensor  # (B, T, N) probabilities
    confidence: Tensor  # (B, T, N) probabilities

    @property
    def score(self) -> Tensor:
        """Return visibility x confidence, the product that benchmarks threshold at 0.6."""
        return self.visibility * self.confidence

    def visible(self, threshold: float = 0.6, with_confidence: bool = True) -> Tensor:
        """Return in which frames a point is visible, (B, T, N).

        `threshold=0.9, with_confidence=False` is the rule of the published offline demo.
        """
        return (self.score if with_confidence else self.visibility) > threshold


@dataclass(frozen=True)
class Predictor:
    """A model with its inference settings; call it with a video and queries.

    Support points show the model how the scene moves and are dropped afterward. Only the offline
    model uses them: the online model gets the video chunk by chunk without them.
    """

    model: CoTracker3Offline | CoTracker3Online
    # (height, width) to which videos are resized
    resolution: tuple[int, int] = (384, 512)
    iters: int = 6
    # side of the grid of support points over the first frame; 0: none
    grid_size: int = 5
    # support points at random frames and positions, the same for every video
    random_points: int = 0
    # each query with separate support points, as in the paper's tables; false: all together
    single_point: bool = False
    # in single-point mode, side of the grid around the query position in the first frame; 0: none
    local_grid_size: int = 8
    # in single-point mode, queries per batch: affects memory, not results
    queries_per_batch: int = 16
    # online model: also track backward from the query; the offline model always uses both
    # directions
    backward_tracking: bool = False
    # offline model: before their query, take points from a second pass over the reversed video, as
    # the published predictor does on request
    reversed_before_query: bool = False
    # online model, or without single_point: queries per pass, each with the support points. The
    # offline model encodes the video once for all of them. None: all in one pass
    points_per_chunk: int | None = None
    # set every point to its query position, visible, in its query frame
    pin_queries: bool = False
    # offline model: size of a second pass, which refines the tracks of the first; None: one pass
    fine_resolution: tuple[int, int] | None = None
    fine_iters: int = 2

    def __post_init__(self) -> None:
        for name in ("queries_per_batch", "points_per_chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")
        if self.fine_resolution is not None and isinstance(self.model, CoTracker3Online):
            raise ConfigError(
                f"fine_resolution={self.fine_resolution}, but the online model sees a video once; "
                "leave it out, or use an offline model"
            )

    @torch.no_grad()
    def __call__(
        self,
        video: Tensor,  # (B, T, 3, H, W) in 0..255, uint8 or float
        queries: Tensor,  # (B, N, 3): frame, x, y in pixels of the video
        report: Callable[[float], None] | None = None,
    ) -> Prediction:
        """Track the queried points; the result is on the model's device.

        `report` is called with the completed fraction: after each chunk of points, or each window
        of the online model.
        """
        check_queries(video, queries)
        device = next(self.model.parameters()).device
        batch, frames, _, height, width = video.shape
        queries = queries.to(device, torch.float32)
        if queries.shape[1] == 0:
            nothing = queries.new_zeros(batch, frames, 0)
            return Prediction(queries.new_zeros(batch, frames, 0, 2), nothing, nothing)
        scale_xy = pixel_scale((height, width), self.resolution, device)
        scaled = _scaled(queries, scale_xy)
        if isinstance(self.model, CoTracker3Online):
            scaled_prediction = self._streams(video, scaled, report)
        elif self.single_point:
            scaled_prediction = self._one_by_one(video, scaled)
        else:
            scaled_prediction = self._together(video, scaled, report)
        prediction = scaled_prediction._replace(tracks_xy=scaled_prediction.tracks_xy / scale_xy)
        return _pin(prediction, queries) if self.pin_queries else prediction

    def _encode(self, video: Tensor, device: torch.device) -> list[Pyramid]:
        """Encode the video for each pass."""
        sizes = [self.resolution, *([] if self.fine_resolution is None else [self.fine_resolution])]
        return [self.model.encode(self.resized(video, device, size)) for size in sizes]

    def _track(self, pyramids: list[Pyramid], queries: Tensor) -> Tracks:
        """Track through a video encoded for each pass; pixels are those of the first."""
        assert isinstance(self.model, CoTracker3Offline)
        estimate = self.model.estimates(pyramids[0], queries, self.iters)[-1]
        if self.fine_resolution is not None:
            scale_xy = pixel_scale(self.resolution, self.fine_resolution, queries.device)
            start = estimate._replace(tracks_xy=estimate.tracks_xy * scale_xy)
            fine_queries = _scaled(queries, scale_xy)
            fine = self.model.estimates(pyramids[1], fine_queries, self.fine_iters, start)[-1]
            estimate = fine._replace(tracks_xy=fine.tracks_xy / scale_xy)
        return Tracks.from_estimate(estimate, None)

    def resized(self, video: Tensor, device: torch.device, size: tuple[int, int]) -> Tensor:
        """Return the frames on the device at a size, (B, T, 3, *size) float32."""
        result = torch.empty((*video.shape[:3], *size), device=device)
        targets, parts = (torch.split(frames, FRAMES_RESIZED, dim=1) for frames in (result, video))
        for target, part in zip(targets, parts, strict=True):
            frames = F.interpolate(
                part.to(device).flatten(0, 1).float(),
                size,
                mode="bilinear",
                align_corners=True,
            )
            target.copy_(torch.unflatten(frames, 0, part.shape[:2]))
        return result

    def _together(
        self, video: Tensor, queries: Tensor, report: Callable[[float], None] | None = None
    ) -> Prediction:
        """Track all queries of a video with one set of support points, or chunk by chunk."""
        device = queries.device
        shared = self._support_points(video.shape[1], device).expand(len(video), -1, -1)
        pyramids = self._encode(video, device)
        backward = self._encode(video.flip(1), device) if self.reversed_before_query else None
        results, done = [], 0
        for chunk in torch.split(queries, self.points_per_chunk or queries.shape[1], dim=1):
            count = chunk.shape[1]
            tracks = self._track(pyramids, torch.cat([chunk, shared], dim=1))
            prediction = _first_points(tracks, count)
            if backward is not None:
                turned = reversed_queries(chunk, video.shape[1])
                before = self._track(backward, torch.cat([turned, shared], dim=1))
                prediction = _before_query(prediction, _first_points(before, count), chunk)
            results.append(prediction)
            done += count
            if report is not None:
                report(done / queries.shape[1])
        return Prediction(*(torch.cat(parts, dim=2) for parts in zip(*results, strict=True)))

    def _one_by_one(self, video: Tensor, queries: Tensor) -> Prediction:
        """Track each query with its own support points; encode the video once."""
        (batch, points), device = queries.shape[:2], queries.device
        pyramids = self._encode(video, device)
        shared = self._support_points(video.shape[1], device)  # (G, 3)
        local_xy = point_grid(self.local_grid_size, LOCAL_EXTENT, (0.0, 0.0), device)
        owners = torch.arange(batch, device=device).repeat_interleave(points)
        results = []
        for queries_of_owner, owner in zip(
            torch.split(queries.reshape(-1, 1, 3), self.queries_per_batch),
            torch.split(owners, self.queries_per_batch),
            strict=True,
        ):
            around = _in_first_frame(queries_of_owner[..., 1:] + local_xy)  # (M, G', 3)
            together = torch.cat(
                [queries_of_owner, around, shared.expand(len(queries_of_owner), -1, -1)], dim=1
            )
            tracks = self._track([pyramid.samples(owner) for pyramid in pyramids], together)
            results.append(_first_points(tracks, 1))
        # Parts of (M, T, 1, ...) become (B, T, N, ...).
        return Prediction(
            *(
                torch.unflatten(torch.cat(parts).squeeze(2), 0, (batch, points)).transpose(1, 2)
                for parts in zip(*results, strict=True)
            )
        )

    def _support_points(self, frames: int, device: torch.device) -> Tensor:
        """Return the support points that all queries share, (G, 3)."""
        height, width = self.resolution
        grid = _in_first_frame(point_grid(self.grid_size, (height, width), device=device))
        generator = torch.Generator().manual_seed(RANDOM_POINTS_SEED)
        size = torch.tensor([frames, width, height])
        anywhere = torch.rand(self.random_points, 3, generator=generator) * size
        anywhere[:, 0].floor_()
        return torch.cat([grid, anywhere.to(device)])

    def _streams(
        self, video: Tensor, queries: Tensor, report: Callable[[float], None] | None
    ) -> Prediction:
        """Track the queries chunk by chunk with the online model, in one or both directions."""
        chunks = torch.split(queries, self.points_per_chunk or queries.shape[1], dim=1)
        passes = len(chunks) * (2 if self.backward_tracking else 1)
        results, done = [], 0
        for chunk in chunks:
            forward = self._stream(video, chunk, report=_later(report, done, passes))
            done += 1
            if self.backward_tracking:  # before a point's query, the video is played backwards
                turned = reversed_queries(chunk, video.shape[1])
                reporting = _later(report, done, passes)
                backward = self._stream(video, turned, backward=True, report=reporting)
                forward = _before_query(forward, backward, chunk)
                done += 1
            results.append(forward)
        return Prediction(*(torch.cat(parts, dim=2) for parts in zip(*results, strict=True)))

    def _stream(
        self,
        video: Tensor,
        queries: Tensor,
        backward: bool = False,
        report: Callable[[float], None] | None = None,
    ) -> Prediction:
        """Track window by window; frames are resized on the way, forward or reversed.

        Only one window is on the device at a time, so a video may have any length.
        """
        assert isinstance(self.model, CoTracker3Online)
        frames, done = video.shape[1], 0
        chunk = torch.empty((len(video), 0, 3, *self.resolution), device=queries.device)
        self.model.init_video_online_processing()
        for span in sliding_windows(frames, self.model.window_len):
            if backward:
                new = video[:, frames - span.stop : frames - done].flip(1)
            else:
                new = video[:, done : span.stop]
            # The frames shared with the previous window are already resized.
            shared = chunk[:, chunk.shape[1] - (done - span.start) :]
            frames_new = self.resized(new, queries.device, self.resolution)
            chunk, done = torch.cat([shared, frames_new], dim=1), span.stop
            tracks = self.model(chunk, queries, self.iters, is_online=True)
            if report is not None:
                report(done / frames)
        self.model.init_video_online_processing()  # lets go of the memory
        return Prediction(*tracks[:3])


def _later(
    report: Callable[[float], None] | None, done: int, passes: int
) -> Callable[[float], None] | None:
    """Report the progress of one pass as a fraction of all passes."""
    return None if report is None else lambda part: report((done + part) / passes)


def check_queries(video: Tensor, queries: Tensor) -> None:
    """Reject queries outside the video."""
    frames, height, width = video.shape[1], *video.shape[-2:]
    if frames == 0:
        raise DataError("a video of 0 frames: there is nothing to track in it")
    low = torch.tensor([0.0, -QUERY_MARGIN, -QUERY_MARGIN], device=queries.device)
    beyond = QUERY_MARGIN - 1
    high = torch.tensor([frames - 1.0, width + beyond, height + beyond], device=queries.device)
    inside = ((queries >= low) & (queries <= high)).all(-1)  # false for NaN
    if not inside.all():
        video_number, point = (~inside).nonzero()[0].tolist()
        query_text = ", ".join(f"{value:g}" for value in queries[video_number, point].tolist())
        raise DataError(
            f"{int((~inside).sum())} of {inside.numel()} queries lie outside the video, first "
            f"query {point}: ({query_text}). A query is (frame, x, y) with frame 0 to "
            f"{frames - 1}, x 0 to {width - 1} and y 0 to {height - 1} pixels; "
            "correct it or drop it."
        )


def _scaled(queries: Tensor, scale_xy: Tensor) -> Tensor:
    """Return queries (B, N, 3) in pixels of another size."""
    return torch.cat([queries[..., :1], queries[..., 1:] * scale_xy], dim=-1)


def reversed_queries(queries: Tensor, frames: int) -> Tensor:
    """Return the queries (B, N, 3) in the reversed video."""
    turned = queries.clone()
    turned[..., 0] = frames - 1 - queries[..., 0]
    return turned


def _before_query(forward: Prediction, backward: Prediction, queries: Tensor) -> Prediction:
    """Combine forward tracks from the query on with backward tracks before it."""
    after = since_query(queries[..., 0], forward.visibility.shape[1])  # (B, T, N)
    return Prediction(
        torch.where(after.unsqueeze(-1), forward.tracks_xy, backward.tracks_xy.flip(1)),
        torch.where(after, forward.visibility, backward.visibility.flip(1)),
        torch.where(after, forward.confidence, backward.confidence.flip(1)),
    )


def _in_first_frame(positions_xy: Tensor) -> Tensor:
    """Return positions (..., 2) as queries in frame 0, (..., 3)."""
    return F.pad(positions_xy, (1, 0))


def _first_points(tracks: Tracks, count: int) -> Prediction:
    return Prediction(*(part[:, :, :count] for part in tracks[:3]))


def _pin(prediction: Prediction, queries: Tensor) -> Prediction:
    """Set each point to its query in the query frame, with visibility 1."""
    frames = prediction.visibility.shape[1]
    time = torch.arange(frames, device=queries.device)[:, None]
    at_query = queries[..., 0].long().unsqueeze(1) == time  # (B, T, N)
    positions_xy = queries[..., 1:].unsqueeze(1)
    return Prediction(
        torch.where(at_query.unsqueeze(-1), positions_xy, prediction.tracks_xy),
        prediction.visibility.masked_fill(at_query, 1),
        prediction.confidence.masked_fill(at_query, 1),
    )
