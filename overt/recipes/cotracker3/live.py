"""CoTracker3 on frames that arrive one by one, for example from a camera.

The online model sees windows of S frames, one every S / 2 frames: a point's position is known up to
S / 2 frames after its frame arrived. N points, H x W pixels of the incoming frames.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.data.tracking.clips import as_points, refuse_points_outside
from overt.errors import DataError
from overt.geometry.grid import pixel_scale
from overt.recipes.cotracker3.model import Tracks
from overt.recipes.cotracker3.online import CoTracker3Online, Stream
from overt.tasks import PointTracks

NEVER = 2.0**30  # the query frame of points that are yet to be given


class LiveFrame(NamedTuple):
    """State of the points added so far, in the newest frame that a window has covered."""

    points_xy: Tensor  # (N, 2) pixels
    visible: Tensor  # (N,) bool
    visibility: Tensor  # (N,) probabilities
    rho: Tensor  # (N,) probabilities of being wrong


class LiveTracker:
    """Track points through incoming frames: `observe` frames, `add` points, then `advance`.

    `finish` returns the tracks through all frames. Memory is allocated for `points` points.
    """

    def __init__(
        self,
        model: CoTracker3Online,
        frame_size: tuple[int, int],  # (height, width)
        points: int,
        resolution: tuple[int, int],
        iters: int,
        threshold: float,
    ) -> None:
        self.model, self.frame_size, self.resolution = model, frame_size, resolution
        self.iters, self.threshold = iters, threshold
        self.device = next(model.parameters()).device
        self.queries = torch.full((1, points, 3), NEVER, device=self.device)
        self.queries[..., 1:] = 0
        self.given = 0  # points that have been added
        self.covered = 0  # points that had been added when the last window ran
        self.seen = 0  # frames
        self.window: list[Tensor] = []  # resized frames that the next window has
        self.tracks: Tracks | None = None
        self.scale_xy = pixel_scale(frame_size, resolution, self.device)
        self.stream = Stream()  # its own: the model may follow other videos meanwhile

    @torch.no_grad()
    def observe(self, frame: Tensor) -> None:
        """Take the newest frame, (3, H, W) uint8."""
        if frame.shape != (3, *self.frame_size) or frame.dtype != torch.uint8:
            raise DataError(
                f"a frame of shape {tuple(frame.shape)} and type {frame.dtype}; this tracker "
                f"follows points in uint8 frames of shape {(3, *self.frame_size)}"
            )
        pixels = frame[None].to(self.device).float()
        resized = F.interpolate(pixels, self.resolution, mode="bilinear", align_corners=True)
        self.window.append(resized[0])
        self.seen += 1

    def add(self, points_xy: Tensor) -> list[int]:
        """Add points (N, 2) in the newest frame; return a number for each."""
        points_xy = as_points(points_xy)
        first, last = self.given, self.given + len(points_xy)
        if self.seen == 0:
            raise DataError("points were added before the first frame; show a frame first")
        if last > self.queries.shape[1]:
            raise DataError(
                f"{last} points, but the tracker was made for {self.queries.shape[1]}; give the "
                "number of all points at the start"
            )
        refuse_points_outside(points_xy, self.frame_size)
        self.queries[0, first:last, 0] = self.seen - 1
        self.queries[0, first:last, 1:] = points_xy.to(self.device) * self.scale_xy
        self.given = last
        return list(range(first, last))

    def advance(self) -> LiveFrame:
        """Run a window if one is complete; return the newest known positions.

        Until the first window that contains it has run, a point stays at its query, invisible.
        """
        if len(self.window) == self.model.window_len:
            self._run()
        if self.tracks is None:
            count = self.given
            nothing = torch.zeros(count, device=self.device)
            return LiveFrame(self._query_xy(), nothing > 0, nothing, 1 - nothing)
        tracks = self._points(slice(-1, None))
        return LiveFrame(
            tracks.tracks_xy[-1],
            tracks.visible[-1],
            tracks.visibility[-1],
            1 - tracks.confidence[-1],
        )

    def finish(self) -> PointTracks:
        """Return the tracks of all points through all frames, on the CPU.

        Before its query a point stays at the query position, invisible.
        """
        if self.seen == 0:
            raise DataError("no frame arrived")
        shared = 0 if self.tracks is None else self.model.step
        if len(self.window) > shared:  # frames that no window has covered yet
            self._run()
        tracks = self._points()
        times = torch.arange(self.seen, device=self.device)[:, None]
        before = times < self.queries[0, : self.given, 0]
        result = PointTracks(
            torch.where(before[..., None], self._query_xy(), tracks.tracks_xy),
            tracks.visible & ~before,
            tracks.visibility.masked_fill(before, 0),
            tracks.confidence.masked_fill(before, 0),
        )
        self.stream = Stream()  # frees the memory of this one
        return PointTracks(*(part.cpu() for part in result))

    def _run(self) -> None:
        chunk = torch.stack(self.window)[None]
        others, self.model.stream = self.model.stream, self.stream
        try:
            self.tracks = self.model(chunk, self.queries, self.iters, is_online=True)
        finally:
            self.model.stream = others
        self.covered = self.given
        self.window = self.window[self.model.step :] if len(chunk[0]) > self.model.step else []

    def _points(self, frames: slice = slice(None)) -> PointTracks:
        assert self.tracks is not None
        tracks_xy, visibility, confidence = (
            part[0, frames, : self.given] for part in self.tracks[:3]
        )
        # To the last window, points added since were placeholders at (0, 0).
        waiting = torch.arange(self.given, device=self.device) >= self.covered
        points_xy = torch.where(waiting[:, None], self._query_xy(), tracks_xy / self.scale_xy)
        visibility, confidence = (part.masked_fill(waiting, 0) for part in (visibility, confidence))
        visible = (visibility * confidence > self.threshold) & ~waiting
        return PointTracks(points_xy, visible, visibility, confidence)

    def _query_xy(self) -> Tensor:
        """Return the query positions (N, 2) of the points added so far, in pixels of the frames."""
        return self.queries[0, : self.given, 1:] / self.scale_xy
