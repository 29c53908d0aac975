"""overt/ops/attention/packing.py: where sequences lie among packed tokens."""

import torch

from overt.ops.attention.packing import Packing


def test_the_packing_says_the_index_of_every_token() -> None:
    packing = Packing.of([2, 0, 3], bound=9)
    assert packing.offsets.tolist() == [0, 2, 2, 5]
    assert packing.offsets.dtype == torch.int32  # what the kernel takes
    assert packing.padded_index.tolist() == [0, 1, 6, 7, 8]
    assert packing.visible[:, 0, 0].tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert (packing.longest, packing.bound) == (3, 9)
