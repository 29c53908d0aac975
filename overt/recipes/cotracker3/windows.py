"""Where the windows of the online CoTracker3 lie: for the model, the truth and streamed chunks."""

from __future__ import annotations

import torch
from torch import Tensor


def sliding_windows(frames: int, window_len: int) -> list[slice]:
    """Windows of `window_len` frames, each half a window after the one before.

    The last one may be short, but holds frames that no other has; a short video has one window.
    """
    step = window_len // 2
    starts = range(0, max(frames - step, 1), step)
    return [slice(start, min(start + window_len, frames)) for start in starts]


def since_query(query_frames: Tensor, frames: int) -> Tensor:
    """In which frames an online model follows a point: its query's and all later ones.

    Query frames (B, N) to bool (B, frames, N).
    """
    time = torch.arange(frames, device=query_frames.device)
    return query_frames.unsqueeze(1) <= time[:, None]
