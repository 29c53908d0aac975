"""The indices of the largest numbers of each row.

`top_k_plain` is the definition, for any device and for export. The Triton twin serves 16-bit
numbers and few of them: it reads a row once, where torch selects and then sorts.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.top_k.plain import top_k_plain

MOST = 16  # indices of a row; the kernel searches it once for each


def top_k(scores: Tensor, count: int) -> Tensor:
    """`top_k_plain`, by the kernel where it can run; of equal numbers that takes the first."""
    length = scores.shape[-1]
    if count > min(MOST, length) or not use_kernels("top_k", scores, length=length):
        return top_k_plain(scores, count)
    from overt.ops.top_k.kernels import top_k_fused

    result: Tensor = top_k_fused(scores, count)
    return result
