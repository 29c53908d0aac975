"""overt/recipes/blade/dpt.py: the map that DepthNet takes, at a lower cost."""

import torch

from overt.recipes.blade.dpt import double_and_resize, resize


def test_the_short_way_to_the_map_is_the_long_way() -> None:
    maps = torch.randn(2, 3, 12, 20)
    long = resize(resize(maps, (24, 40)), (9, 9))
    torch.testing.assert_close(double_and_resize(maps, 9), long, atol=1e-5, rtol=1e-4)
    out = torch.full((2, 9, 9, 3), torch.nan)
    written = double_and_resize(maps, 9, out)
    torch.testing.assert_close(written, long, atol=1e-5, rtol=1e-4)
    assert written.data_ptr() == out.data_ptr()
