"""overt/ops/channels_last.py: the layout of maps for kernels, and the lowest value of a result."""

import torch

from overt.ops.channels_last import dense, empty_like, lowest


def test_maps_lie_channels_last_with_the_same_values() -> None:
    maps = torch.randn(2, 3, 4, 5)
    for result in (dense(maps), empty_like(maps)):
        assert result.shape == maps.shape
        assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(dense(maps), maps)


def test_without_relu_nothing_is_too_low() -> None:
    assert lowest(relu=True) == 0
    assert lowest(relu=False) == -torch.inf
