"""CoTracker3 in sliding windows, for long videos and streams.

Letters as in `model.py`; S is the window length. A window starts half a window after the previous
one, initialized with its estimates for the shared frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from overt.errors import ConfigError, DataError
from overt.recipes.cotracker3.model import (
    CoTracker3,
    Estimate,
    Repeated,
    Tracks,
    TrainData,
)
from overt.recipes.cotracker3.pyramid import Pyramid
from overt.recipes.cotracker3.windows import since_query, sliding_windows


@dataclass
class Stream:
    """State carried from the chunks of a video so far to the next one."""

    windows: list[Estimate] = field(default_factory=list)  # the last estimate of each
    support: Tensor | None = None  # (B, N, L, P*P, C), zero for queries yet to come
    shared: Pyramid | None = None  # maps of the second half of the last chunk
    frame_shape: torch.Size | None = None  # (B, 3, H, W) of all chunks


class CoTracker3Online(CoTracker3):
    """The online tracker, which sees one window at a time and tracks points from their query on."""

    def __init__(self, window_len: int = 16, **sizes: Any) -> None:
        super().__init__(window_len, **sizes)
        if window_len % 2 or window_len < 2:
            raise ConfigError(
                f"model.window_len={window_len}: the windows of the online model overlap by half, "
                "so it must be even and at least 2"
            )
        self.window_len = window_len
        self.step = window_len // 2
        self.stream = Stream()

    def forward(
        self,
        video: Tensor,  # (B, T, 3, H, W) in 0..255, uint8 or float
        queries: Tensor,  # (B, N, 3): frame, x, y in pixels
        iters: int = 4,
        is_train: bool = False,
        is_online: bool = False,
    ) -> Tracks:
        """Track the queried points through a video, or through its next chunk.

        With `is_online`, for inference, each call gets the frames of one window of
        `sliding_windows`, the first half of which the previous call had, and returns the tracks in
        all frames so far. Query frames count from the start of the video.
        """
        if is_online:
            return self.track_chunk(video, queries, iters)
        return self.track(self.encode(video), queries, iters, is_train)

    def track(
        self, pyramid: Pyramid, queries: Tensor, iters: int, is_train: bool = False
    ) -> Tracks:
        """Track points through an encoded video."""
        frames = pyramid.map_rows.shape[2]
        query_frames, query_xy = queries[..., 0].long(), queries[..., 1:].float() / self.stride
        support = self.query_features(pyramid, query_frames, query_xy)
        pyramid = pyramid.after_queries()
        windows: list[list[Estimate]] = []
        before = None
        repeated = self.repeated(pyramid)
        for span in sliding_windows(frames, self.window_len):
            own_frames = query_frames - span.start
            estimates = self.window(
                pyramid, span.start, support, own_frames, query_xy, before, iters, repeated
            )
            before = estimates[-1]
            length = span.stop - span.start
            windows.append([estimate.frames(0, length) for estimate in estimates])
        train_data = None
        if is_train:
            train_data = TrainData(windows, since_query(query_frames, frames).float())
        stitched = stitch([window[-1] for window in windows], self.step)
        return Tracks.from_estimate(stitched, train_data)

    def init_video_online_processing(self) -> None:
        """Reset the state: the next chunk starts another video."""
        self.stream = Stream()

    @torch.no_grad()
    def track_chunk(self, chunk: Tensor, queries: Tensor, iters: int) -> Tracks:
        """Track points through the next chunk, (B, T', 3, H, W) with T' up to S."""
        stream = self.stream
        self._check_chunk(chunk, queries)
        first_half, *second_half = torch.split(chunk, self.step, dim=1)
        pyramid = shared = stream.shared if stream.shared is not None else self.encode(first_half)
        for frames in second_half:  # only a video of at most half a window has none
            shared = self.encode(frames)
            pyramid = pyramid.followed_by(shared)

        start = len(stream.windows) * self.step
        query_frames = queries[..., 0].long() - start
        query_xy = queries[..., 1:].float() / self.stride
        first_new = self.step if stream.windows else 0
        new = (query_frames >= first_new) & (query_frames < self.window_len)
        support = self.query_features(pyramid, query_frames, query_xy) * new[..., None, None, None]
        if stream.support is not None:
            support = support + stream.support
        before = stream.windows[-1] if stream.windows else None
        estimate = self.window(
            pyramid, 0, support, query_frames, query_xy, before, iters, self.repeated(pyramid)
        )[-1]
        # All at once and last of all: an interrupted call can be made again.
        stream.support, stream.shared, stream.frame_shape = support, shared, chunk[:, 0].shape
        stream.windows.append(estimate.frames(0, chunk.shape[1]))
        return Tracks.from_estimate(stitch(stream.windows, self.step), None)

    def window(
        self,
        pyramid: Pyramid,
        start: int,  # of the window, in the frames of the pyramid
        support: Tensor,  # (B, N, L, P*P, C)
        query_frames: Tensor,  # (B, N) counted from the start of the window
        query_xy: Tensor,  # (B, N, 2) cells
        before: Estimate | None,  # of the window half a window earlier
        iters: int,
        repeated: Repeated,
    ) -> list[Estimate]:
        """Refine one window of S frames; the last frame of the video is repeated as padding."""
        last_frame = pyramid.map_rows.shape[2] - 1
        index = torch.arange(start, start + self.window_len, device=support.device)
        pyramid = pyramid.frames(index.clamp(max=last_frame))
        # Points whose query is still ahead have zero features, but take part in the attention.
        support = support * (query_frames < self.window_len)[..., None, None, None]

        cells_xy = query_xy.unsqueeze(2).expand(-1, -1, self.window_len, -1)
        visibility = confidence = torch.zeros_like(cells_xy[..., 0])
        if before is not None:
            carried = (query_frames < self.step).unsqueeze(-1)  # (B, N, 1)
            tracks_xy, *logits = (self._hold(part).transpose(1, 2) for part in before)
            cells_xy = torch.where(carried.unsqueeze(-1), tracks_xy / self.stride, cells_xy)
            visibility, confidence = (torch.where(carried, part, visibility) for part in logits)
        return self.refine(pyramid, support, cells_xy, visibility, confidence, iters, repeated)

    def _hold(self, part: Tensor) -> Tensor:
        """Return the second half of a window, (B, S, N, ...), and repeat its last frame."""
        last = part[:, -1:].expand(-1, self.step, *part.shape[2:])
        return torch.cat([part[:, self.step :], last], dim=1)

    def _check_chunk(self, chunk: Tensor, queries: Tensor) -> None:
        """Reject a chunk that does not follow the previous ones."""
        stream, frames = self.stream, chunk.shape[1]
        start = len(stream.windows) * self.step
        fewest = self.step + 1 if stream.windows else 1
        if not fewest <= frames <= self.window_len:
            raise DataError(
                f"a chunk of {frames} frames from frame {start} on: it must have {fewest} to "
                f"{self.window_len}, the first {self.step} of which every chunk but the first "
                "shares with the one before (model.window_len)"
            )
        if stream.support is None:
            return
        if stream.windows[-1].visibility.shape[1] < self.window_len:
            raise DataError(
                f"another chunk, but the one before had fewer than {self.window_len} frames, which "
                "only the last may; call init_video_online_processing() before another video"
            )
        if chunk[:, 0].shape != stream.frame_shape:
            raise DataError(
                f"a chunk with frames of shape {tuple(chunk[:, 0].shape)}, before they had "
                f"{tuple(stream.frame_shape or ())} (videos, channels, height, width); call "
                "init_video_online_processing() before another video"
            )
        if queries.shape[:2] != stream.support.shape[:2]:
            raise DataError(
                f"{queries.shape[1]} queries for each of {queries.shape[0]} videos, but the chunk "
                f"before had {stream.support.shape[1]} for each of {stream.support.shape[0]}; give "
                "all queries with every chunk, also those of later frames"
            )


def stitch(windows: Sequence[Estimate], step: int) -> Estimate:
    """Merge the estimates of all windows; where windows overlap, the later one is used."""
    settled = [window.frames(0, step) for window in windows[:-1]]
    parts = zip(*settled, windows[-1], strict=True)
    return Estimate(*(torch.cat(part, dim=1) for part in parts))
