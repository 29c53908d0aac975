"""overt/nn/deformable.py: where the module looks at the start, and that a start at zero is none."""

import math

import pytest
import torch

from overt.nn.deformable import DeformableAttention

SIZES = ((8, 8), (4, 4))


@pytest.mark.parametrize("heads", [4, 8])
def test_places_start_as_a_star(heads: int) -> None:
    module = DeformableAttention(32, heads, levels=2, points=3)
    offsets, logits = module.offsets_and_logits(torch.randn(1, 5, 32))
    assert not logits.any()  # a uniform softmax
    for head in range(heads):
        angle = 2 * math.pi * head / heads
        direction = torch.tensor([math.cos(angle), math.sin(angle)])
        direction = direction / direction.abs().max()
        for point in range(3):
            wanted = (direction * (point + 1)).expand(1, 5, 2, 2)
            torch.testing.assert_close(offsets[:, :, head, :, point], wanted)


def test_places_of_a_head_part_from_this_start() -> None:
    module = DeformableAttention(16, 2, levels=2, points=4)
    query, tokens = torch.randn(1, 6, 16), torch.randn(1, 80, 16)
    reference = torch.rand(1, 6, 2, 2)
    module(query, module.project(tokens), reference, SIZES).square().sum().backward()
    gradient = module.sampling_offsets.bias.grad.view(2, 2, 4, 2)
    assert gradient.std(dim=2).min() > 0  # no two places of a head get the same


def test_the_query_is_part_of_the_result() -> None:
    module = DeformableAttention(16, 2, levels=2, points=4)
    torch.nn.init.zeros_(module.output_proj.weight)
    query = torch.randn(1, 6, 16)
    values = module.project(torch.randn(1, 80, 16))
    assert torch.equal(module(query, values, torch.rand(1, 6, 2, 2), SIZES), query)


def test_only_the_attention_is_dropped_and_only_in_training() -> None:
    module = DeformableAttention(16, 2, levels=2, points=4, dropout=0.5)
    query, reference = torch.randn(1, 400, 16), torch.rand(1, 400, 2, 2)
    values = module.project(torch.randn(1, 80, 16))
    seed = torch.tensor(5)
    trained = module(query, values, reference, SIZES, seed)
    quiet = module(query, values, reference, SIZES)
    same = (trained == query).float().mean().item()
    assert same == pytest.approx(0.5, abs=0.05)
    kept = trained != query
    torch.testing.assert_close((trained - query)[kept], 2 * (quiet - query)[kept])
