"""overt/recipes/lbm/cpu_attention.py: both attentions with their linear maps multiplied."""

import pytest
import torch
from torch import nn

from overt.nn.deformable import DeformableAttention
from overt.recipes.lbm import cpu_attention
from overt.recipes.lbm.blocks import EntryAttention
from overt.recipes.lbm.cpu_attention import (
    CpuDeformable,
    FoldedEntryAttention,
    ProjectedDeformables,
    SingleEntryAttention,
    make_pyramid,
)
from overt.recipes.lbm.pyramid import make_tokens


def randomize(module: nn.Module) -> None:
    """Move the parameters that start at zero too: biases, and what offsets and weights read."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


@torch.no_grad()
def test_entries_are_read_alike() -> None:
    attention = EntryAttention(16, 4, 0.0).eval()
    randomize(attention)
    query, entries, embedding = torch.randn(3, 16), torch.randn(3, 5, 16), torch.randn(5, 16)
    ignore = torch.tensor([[True, False, False, True, False]] * 2 + [[False] * 5])
    folded = FoldedEntryAttention(attention)
    torch.testing.assert_close(folded(query, entries), attention(query, entries))
    torch.testing.assert_close(
        folded(query, entries, embedding, ignore), attention(query, entries, embedding, ignore)
    )
    single = SingleEntryAttention(attention)
    torch.testing.assert_close(
        single(query, entries[:, :1]), attention(query, entries[:, :1]), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("few_points", [True, False])
@pytest.mark.parametrize("small_map", [0, 96, 384])  # no level is small, one, both
@torch.no_grad()
def test_deformable_attention_reads_alike(
    few_points: bool, small_map: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two attentions, inside and outside of the image, around several centers."""
    sizes = ((16, 24), (8, 12))
    for name in ("SMALL_MAP", "SMALL_PROJECTED_MAP"):
        monkeypatch.setattr(cpu_attention, name, small_map)
    attentions = [DeformableAttention(16, 4, len(sizes), 3).eval() for _ in range(2)]
    for attention in attentions:
        randomize(attention)
        attention.sampling_offsets.weight.mul_(10)
    attentions[1].output_proj.weight.mul_(-1)
    features, query = torch.randn(1, 16, 24, 16), torch.randn(5, 16)
    centers = torch.rand(5, 2, 2) * 2 - 1
    pyramid = make_pyramid(features[0].flatten(0, 1), sizes)
    form = CpuDeformable if few_points else ProjectedDeformables
    reads = form(attentions, sizes)(query, centers, pyramid)

    repeated = query.repeat_interleave(2, dim=0).unsqueeze(0)
    reference = ((centers + 1) / 2).view(1, 10, 1, 2).expand(-1, -1, 2, -1)
    for attention, read in zip(attentions, reads, strict=True):
        values = attention.project(make_tokens(features, 2))
        wanted = attention(repeated, values, reference, sizes) - repeated
        torch.testing.assert_close(read, wanted.view(5, 2, 16), atol=1e-4, rtol=1e-4)
