"""Window positions of the online CoTracker3, for model, ground truth and streams."""

from __future__ import annotations

import torch
from torch import Tensor


def sliding_windows(frames: int, window_len: int) -> list[slice]:
    """Return windows of `window_len` frames, each half a window after the previous one.

    The last one may be short, but contains frames that no other has; a short video has one window.
    """
    step = window_len // 2
    starts = range(0, max(frames - step, 1), step)
    return [slice(start, min(start + window_len, frames)) for start in starts]


def since_query(query_frames: Tensor, frames: int) -> Tensor:
    """Return in which frames an online model tracks a point: from its query on.

    Query frames (B, N) to bool (B, frames, N).
    """
    time = torch.arange(frames, device=query_frames.device)
    return query_frames.unsqueeze(1) <= time[:, None]
