"""overt/ops/entry_attention/plain.py: attention of one query per head over a row's own entries."""

import pytest
import torch
from torch.nn import functional as F

from overt.ops.dropout.plain import random_below
from overt.ops.entry_attention.api import entry_attention
from overt.ops.entry_attention.plain import entry_attention_plain


def inputs(heads: int, rows: int, length: int, width: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(heads + rows + length)
    shapes = [(heads, rows, width), (rows, length, width), (length, width)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 4), (4, 3, 5, 8)])
def test_it_is_attention_without_scale_to_keys_with_an_embedding(sizes) -> None:
    queries, entries, embedding = inputs(*sizes)
    read, sums = entry_attention_plain(queries, entries, embedding)
    by_row = queries.transpose(0, 1).unsqueeze(2)  # (R, H, 1, C)
    keys, values = (entries + embedding).unsqueeze(1), entries.unsqueeze(1)
    expected = F.scaled_dot_product_attention(by_row, keys, values, scale=1.0)
    torch.testing.assert_close(read, expected.squeeze(2).transpose(0, 1))
    torch.testing.assert_close(sums, torch.ones(sizes[1], sizes[0]))


def test_ignored_entries_have_no_effect() -> None:
    queries, entries, embedding = inputs(2, 3, 5, 8)
    ignore = torch.zeros(3, 5, dtype=torch.bool)
    ignore[:, 2] = True
    read, _ = entry_attention_plain(queries, entries, embedding, ignore)
    kept = [0, 1, 3, 4]
    expected, _ = entry_attention_plain(queries, entries[:, kept], embedding[kept])
    torch.testing.assert_close(read, expected)


def test_dropped_weights_are_zero_and_the_others_are_larger() -> None:
    queries, entries, _ = inputs(2, 40, 5, 8)
    entries[..., :5] = torch.eye(5)  # the first features of a result are its weights
    seed = torch.tensor(12345)
    read, sums = entry_attention_plain(queries, entries, seed=seed, site=3, rate=0.25)
    whole, _ = entry_attention_plain(queries, entries)
    dropped = random_below(torch.Size([40, 2, 5]), 0.25, seed, 3).transpose(0, 1)
    expected = (whole[..., :5] / 0.75).masked_fill(dropped, 0.0)
    torch.testing.assert_close(read[..., :5], expected)
    torch.testing.assert_close(sums, expected.sum(-1).T)
    assert dropped.any()


def test_on_a_cpu_the_definition_serves() -> None:
    queries, entries, embedding = inputs(2, 3, 5, 8)
    found = entry_attention(queries, entries, embedding)
    expected = entry_attention_plain(queries, entries, embedding)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
