"""Scaled dot-product attention, written out.

Letters: L queries, M keys, H heads, d features of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.dispatch import compute_type


def attention_plain(
    query: Tensor,  # (..., L, d)
    key: Tensor,  # (..., M, d)
    value: Tensor,  # (..., M, d)
    mask: Tensor | None = None,  # (..., L or 1, M) bool: which keys a query sees
    scale: float | None = None,  # of the scores; d ** -0.5
) -> Tensor:
    """The mean of the values weighted by a softmax of the scores; at least float32 inside."""
    dtype, wide = compute_type(query), torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast(query.device.type, enabled=False):
        scores = (query.to(wide) * scale) @ key.to(wide).mT  # (..., L, M)
        if mask is not None:
            # Finite: a query that sees no key has a result that is of no use, but no NaN either.
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ value.to(wide)).to(dtype)
