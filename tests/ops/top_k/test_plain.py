"""overt/ops/top_k/plain.py: the largest first."""

import torch

from overt.ops.top_k.api import top_k
from overt.ops.top_k.plain import top_k_plain


def test_the_largest_come_first() -> None:
    scores = torch.tensor([[1.0, 5.0, -2.0, 3.0], [0.0, -1.0, 4.0, 2.0]])
    assert top_k_plain(scores, 2).tolist() == [[1, 3], [2, 3]]
    assert torch.equal(top_k(scores, 4), top_k_plain(scores, 4))
