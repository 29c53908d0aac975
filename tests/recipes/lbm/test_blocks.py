"""overt/recipes/lbm/blocks.py: attention over raw memory entries is torch's."""

import pytest
import torch
from torch import nn

from overt.recipes.lbm.blocks import EntryAttention


@pytest.mark.parametrize("entries", [1, 5])
def test_attention_over_raw_entries_equals_torchs(entries: int) -> None:
    """Moving the projections to the query's side changes nothing but rounding."""
    ours = EntryAttention(16, 4, dropout=0.0)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.normal_(ours.in_proj_bias)
    theirs.load_state_dict(ours.state_dict())
    query, memory = torch.randn(6, 16), torch.randn(6, entries, 16)
    embedding, ignore = torch.randn(entries, 16), torch.rand(6, entries) < 0.4
    ignore[:, -1] = False
    expected, _ = theirs(query[:, None], memory + embedding, memory, key_padding_mask=ignore)
    found = ours(query, memory, embedding, ignore)
    torch.testing.assert_close(found, expected[:, 0], atol=1e-5, rtol=1e-5)
