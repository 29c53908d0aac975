"""Where sequences of different length lie among packed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """S sequences among packed tokens (T, ...), the longest of L tokens; made on the host."""

    offsets: Tensor  # (S + 1,) int32, where each begins, and the end
    padded_index: Tensor  # (T,) int64, index of each token among S x L padded ones
    visible: Tensor  # (S, 1, 1, L) bool, which of the padded ones are tokens
    bound: int  # no sequence of any batch is longer: a constant, so that nothing is recompiled
    longest: int  # of this batch

    @classmethod
    def of(
        cls,
        lengths: Sequence[int] | np.ndarray,
        bound: int | None = None,
        longest: int | None = None,  # to be taken for the longest, where it is to be a constant too
    ) -> Packing:
        """The packing of sequences of these lengths."""
        sizes = np.asarray(lengths, dtype=np.int64)
        longest = int(sizes.max(initial=0)) if longest is None else longest
        ends = np.cumsum(sizes)
        begins = ends - sizes
        inside = np.arange(sizes.sum()) - np.repeat(begins, sizes)
        padded_index = inside + np.repeat(np.arange(len(sizes)) * longest, sizes)
        visible = np.arange(longest) < sizes[:, None]
        return cls(
            offsets=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            padded_index=torch.from_numpy(padded_index),
            visible=torch.from_numpy(visible)[:, None, None],
            bound=longest if bound is None else bound,
            longest=longest,
        )
