"""The indices of the largest numbers of each row."""

from __future__ import annotations

from torch import Tensor


def top_k_plain(scores: Tensor, count: int) -> Tensor:
    """Return the indices (..., count) of the largest scores (..., P), the largest first."""
    return scores.topk(count, dim=-1).indices
