"""Attention of one query per head to the few entries of each row.

Letters: R rows, H heads, J entries of a row, C features. `entry_attention_plain` is the definition,
for any device and for export: thousands of products too small for a GPU. The Triton kernels compute
a row in one program, from each number read once.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.entry_attention.plain import entry_attention_plain

MOST_HEADS = 16  # rows of a tile of a matrix product


def entry_attention(
    queries: Tensor,  # (H, R, C)
    entries: Tensor,  # (R, J, C)
    embedding: Tensor | None = None,  # (J, C)
    ignore: Tensor | None = None,  # (R, J) bool
    seed: Tensor | None = None,  # () int64
    site: int = 0,
    rate: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`entry_attention_plain`, by the kernels where they can run."""
    heads, _, width = queries.shape
    length = entries.shape[1]
    can_run = use_kernels("entry_attention", queries, length=length, width=width)
    if heads > MOST_HEADS or not can_run:
        return entry_attention_plain(queries, entries, embedding, ignore, seed, site, rate)
    from overt.ops.entry_attention.kernels import attend_entries

    result: tuple[Tensor, Tensor] = attend_entries(
        queries, entries, embedding, ignore, seed if rate > 0 else None, site, rate
    )
    return result
