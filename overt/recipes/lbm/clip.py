"""Run the online tracker on a whole clip, for evaluation and `overt track`.

T frames, N queries (t, x, y); positions are in pixels of the video.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from overt.progress import each
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.online import OnlineTracker


class ClipTracks(NamedTuple):
    """Tracks of a whole clip, on the CPU."""

    points_xy: Tensor  # (T, N, 2) pixels of the video
    visible: Tensor  # (T, N) bool
    visibility: Tensor  # (T, N) probabilities
    rho: Tensor  # (T, N) probabilities


def track_clip(
    model: LBM,
    video: Tensor,  # (T, 3, H, W) uint8
    queries: Tensor,  # (N, 3): frame, x, y in pixels; the frame is floored
    memory_size: int | None = None,
    threshold: float | None = None,
    report: Callable[[float], None] | None = None,
) -> ClipTracks:
    """Track queries through a clip with the online tracker, which never looks ahead or back.

    Before its query frame a point stays at its query, invisible. `report` gets the completed
    fraction of frames.
    """
    frames, count = len(video), len(queries)
    device = next(model.parameters()).device
    tracker = OnlineTracker(
        model,
        (video.shape[-2], video.shape[-1]),
        max(count, 1),
        memory_size,
        threshold,
        use_graphs=False,
    )
    begin = queries[:, 0].floor().long().cpu()
    numbers = torch.zeros(count, dtype=torch.long)  # which query a point of the tracker is
    added = 0
    points_xy = queries[:, 1:].to(device, torch.float32).repeat(frames, 1, 1)
    zeros = torch.zeros((frames, count), device=device)
    visibility, rho, visible = (
        zeros,
        torch.ones_like(zeros),
        torch.zeros_like(zeros, dtype=torch.bool),
    )
    for time, frame in enumerate(each(video.unbind(), "tracking frames")):
        tracker.observe(frame)
        new = (begin == time).nonzero().squeeze(1)
        if len(new):
            tracker.add(queries[new, 1:].cpu())
            numbers[added : added + len(new)] = new
            added += len(new)
        if report is not None:
            report((time + 1) / frames)
        if added == 0:
            continue
        estimate = tracker.advance()
        rows = numbers[:added].to(device)
        points_xy[time, rows] = estimate.points_xy
        visibility[time, rows] = estimate.visibility
        rho[time, rows] = estimate.rho
        visible[time, rows] = estimate.visible
    return ClipTracks(*(part.cpu() for part in (points_xy, visible, visibility, rho)))
