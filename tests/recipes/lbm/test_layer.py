"""overt/recipes/lbm/layer.py: a point without usable memory stays as it is."""

import torch
from small_recipes import small_lbm


def test_a_point_without_usable_memory_stays_as_it_is() -> None:
    layer = small_lbm().transformer.layers[0]
    from overt.recipes.lbm.layer import Memory

    query = torch.randn(1, 3, 16)
    entries = torch.randn(1, 3, 3, 16)
    ignore = torch.tensor([[[True] * 3, [True, True, False], [False] * 3]])
    recalled = layer.recall(query, Memory(entries, entries, ignore), None)
    assert torch.equal(recalled[:, 0], query[:, 0])
    assert (recalled[:, 1:] != query[:, 1:]).any()
    changed = entries.clone()
    changed[:, 1, :2] = 1e3  # ignored entries reach nothing
    again = layer.recall(query, Memory(changed, changed, ignore), None)
    torch.testing.assert_close(again, recalled)
