"""overt/engine/strategy/blocks.py: recomputed and compiled blocks keep model and keys."""

import copy

import pytest
import torch
from torch import Tensor, nn

from overt.engine.strategy.blocks import compile_in_place, need_blocks, recompute_in_backward
from overt.errors import ConfigError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.passes = nn.Linear(4, 4), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        result: Tensor = inputs + torch.dropout(self.linear(inputs), 0.5, self.training)
        return result


def gradients(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(1)  # dropout
    model(torch.ones(2, 4)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_recomputed_blocks_give_the_same_gradients_dropout_included() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block())
    recomputed = copy.deepcopy(plain)
    recompute_in_backward(list(recomputed))
    for one, other in zip(gradients(plain), gradients(recomputed), strict=True):
        assert torch.equal(one, other)
    assert [block.passes for block in plain] == [1, 1]
    assert [block.passes for block in recomputed] == [2, 2]  # it was in fact computed again
    assert recomputed.state_dict().keys() == plain.state_dict().keys()


def test_a_copy_of_a_recomputed_block_computes_with_its_own_weights() -> None:
    """As an average of the weights is made: by a deep copy."""
    block = Block().eval()
    recompute_in_backward([block])
    twin = copy.deepcopy(block)
    twin.linear.weight.data.zero_()
    twin.linear.bias.data.zero_()
    inputs = torch.ones(1, 4)
    assert torch.equal(twin(inputs), inputs)
    assert not torch.equal(block(inputs), inputs)


def test_compiling_in_place_keeps_keys_and_results() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block()).eval()
    compiled = copy.deepcopy(plain)
    compile_in_place(list(compiled), "eager", 1.0)
    assert torch.equal(compiled(torch.ones(1, 4)), plain(torch.ones(1, 4)))
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    assert all(block._compiled_call_impl is not None for block in compiled)


def test_blocks_that_are_missing_are_asked_for() -> None:
    blocks: list[nn.Module] = [Block()]
    assert need_blocks(blocks, "training.compile=blocks") is blocks
    with pytest.raises(ConfigError, match=r"training\.compile=blocks works block by block"):
        need_blocks([], "training.compile=blocks")


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(nn.functional.gelu(layer(x)))
        return x


def test_less_is_kept_for_the_backward_pass_as_asked() -> None:
    def kept(budget: float, recompute: bool = True) -> int:
        torch.compiler.reset()  # or the code compiled before would serve
        torch.manual_seed(0)
        model = Chain()
        compile_in_place([model], "aot_eager_decomp_partition", budget, recompute)
        output = model(torch.randn(64, 32))
        return sum(tensor.nbytes for tensor in output.grad_fn.saved_tensors)

    try:
        assert kept(0.3) < kept(1.0) < kept(1.0, recompute=False)
    finally:
        torch._functorch.config.activation_memory_budget = 1.0
