"""Packed sequences give what each of them gives alone."""

import pytest
import torch
from torch import Tensor

from overt.nn.attention import Attention, Block, DropPath, Mlp, rotate
from overt.ops.attention.packing import Packing

LENGTHS = [[3, 1, 5], [4, 4], [1], [2, 7, 1, 1]]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_packed_block_is_a_loop_over_its_sequences_forward_and_backward(
    lengths: list[int],
) -> None:
    torch.manual_seed(0)
    block = Block(12, heads=3, layer_scale=0.5)
    tokens = torch.randn(sum(lengths), 12, requires_grad=True)
    alone = torch.cat([block(part[None])[0] for part in torch.split(tokens, lengths)])
    packed = block(tokens, Packing.of(lengths))
    torch.testing.assert_close(packed, alone)

    weights = torch.randn_like(alone)
    parameters = [tokens, *block.parameters()]
    expected = torch.autograd.grad((alone * weights).sum(), parameters)
    found = torch.autograd.grad((packed * weights).sum(), parameters)
    torch.testing.assert_close(found, expected)


def test_what_is_outside_a_sequence_does_not_change_it() -> None:
    torch.manual_seed(0)
    attention, packing = Attention(8, heads=2), Packing.of([3, 4])
    tokens = torch.randn(7, 8)
    other = tokens.clone()
    other[3:] = torch.randn(4, 8)
    before, after = attention(tokens, packing), attention(other, packing)
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3:], after[3:])


def test_of_frozen_weights_in_bfloat16_the_gelu_is_as_exact_as_rounding_allows() -> None:
    """The exact GELU of numbers that were rounded, and its tanh form of the same."""
    torch.manual_seed(0)
    mlp = Mlp(64, 256)
    torch.nn.init.normal_(mlp.fc1.weight, std=0.2)
    mlp.bfloat16().requires_grad_(False)
    tokens = torch.randn(500, 64).bfloat16()
    precise = Mlp(64, 256).double()
    precise.load_state_dict(mlp.state_dict())
    expected = precise(tokens.double())
    exact = mlp(tokens)  # as with a gradient
    with torch.no_grad():
        found = mlp(tokens)
    assert not torch.equal(found, exact)

    def error(result: Tensor) -> float:
        return float((result.double() - expected).norm() / expected.norm())

    assert error(found) < 1.02 * error(exact) < 0.01


def test_without_gradient_autocast_to_bfloat16_has_the_same_gelu_as_frozen_weights() -> None:
    """A target encoder's weights are float32, and cast in every step."""
    torch.manual_seed(0)
    mlp = Mlp(16, 32)
    torch.nn.init.normal_(mlp.fc1.weight, std=0.2)
    frozen = Mlp(16, 32)
    frozen.load_state_dict(mlp.state_dict())
    frozen.bfloat16().requires_grad_(False)
    tokens = torch.randn(50, 16)
    with torch.no_grad():
        expected = frozen(tokens.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            found = mlp(tokens)
        with torch.autocast("cpu", torch.float16):
            in_float16 = mlp(tokens)
    torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(mlp(tokens), found)  # with a gradient the GELU is exact
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(mlp(tokens), in_float16)


def turned(vector: Tensor, angle: float) -> Tensor:
    angles = torch.full((1, 2), angle)
    return rotate(vector, torch.stack([angles.cos(), angles.sin()], dim=1))


def test_a_rotation_keeps_lengths_and_shows_only_differences_of_angles() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 4)
    torch.testing.assert_close(turned(query, 0.7).norm(), query.norm())
    near = (turned(query, 0.7) * turned(key, 0.3)).sum()
    far = (turned(query, 2.7) * turned(key, 2.3)).sum()
    torch.testing.assert_close(near, far)
    assert not torch.isclose(near, (query * key).sum())


def test_drop_path_leaves_out_whole_sequences_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop, branch = DropPath(0.25), torch.ones(3000, 2)
    packing = Packing.of([1, 2] * 1000)
    kept = drop(branch, packing)[:, 0]
    second = kept.view(1000, 3)[:, 1:]
    assert torch.equal(second[:, 0], second[:, 1])
    assert sorted(set(kept.tolist())) == pytest.approx([0.0, 1 / 0.75])
    assert kept.mean().item() == pytest.approx(1.0, abs=0.06)
    assert drop.eval()(branch, packing) is branch
