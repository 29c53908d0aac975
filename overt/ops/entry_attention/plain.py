"""Attention of one query per head to the few entries of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.dropout.plain import dropout_plain


def entry_attention_plain(
    queries: Tensor,  # (H, R, C)
    entries: Tensor,  # (R, J, C): the values, and without `embedding` the keys
    embedding: Tensor | None = None,  # (J, C) added to the entries to make keys of them
    ignore: Tensor | None = None,  # (R, J) bool; no row may ignore all
    seed: Tensor | None = None,  # () int64 on the device, of the weights that are dropped
    site: int = 0,  # tells apart uses of one seed
    rate: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of entries (H, R, C), and the sums of weights (R, H) in float32.

    A sum of weights is one, except for dropout. No score is scaled.
    """
    by_row = queries.transpose(0, 1)  # (R, H, C)
    logits = by_row @ entries.mT.to(queries.dtype)  # (R, H, J)
    if embedding is not None:
        logits = logits + by_row @ embedding.T.to(queries.dtype)
    if ignore is not None:
        logits = logits.masked_fill(ignore.unsqueeze(1), float("-inf"))
    weights = logits.softmax(dim=-1, dtype=torch.float32)
    if seed is not None and rate > 0:
        weights = dropout_plain(weights, seed, site, rate)
    read = weights.to(entries.dtype) @ entries
    return read.transpose(0, 1), weights.sum(-1)
