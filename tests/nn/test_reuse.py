"""overt/nn/reuse.py: the gradients of many runs together are those of autograd."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from overt.nn.reuse import _Sums, reused, together


class Pair(NamedTuple):
    kept: Tensor
    places: Tensor  # no gradient


class Block(nn.Module):
    """Two weights with one and the same gradient, a frozen one, and one that not all runs use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.second_bias = nn.Parameter(torch.zeros(4))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.extra = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, pair: Pair, number: int, with_extra: Tensor | None) -> tuple[Pair, Tensor]:
        x = torch.tanh(self.linear(pair.kept) + self.second_bias) * self.frozen + number
        if with_extra is not None:
            x = x + self.extra * with_extra
        return Pair(x, x.argmax(-1)), x.square().mean()


def run(block: Block, call: Any, start: Tensor) -> Tensor:
    pair, total = Pair(start, start.argmax(-1)), start.new_zeros(())
    for number in range(4):
        extra = start.sum().detach() if number % 2 else None
        pair, error = call(pair, number, extra)
        assert not pair.places.requires_grad
        total = total + error
    return total + pair.kept.sum()


def gradients(way: str, hooks: list[str] | None = None) -> list[Tensor | None]:
    torch.manual_seed(0)
    block = Block()
    start = torch.randn(3, 4, requires_grad=True)
    weights = [weight for weight in block.parameters() if weight.requires_grad]
    if hooks is not None:
        for name, weight in block.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(lambda _, n=name: hooks.append(n))
    if "compiled" in way:
        block.compile(backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in way):
        total = run(block, together(block) if "together" in way else block, start)
    total.backward()
    return [total.detach(), start.grad, *(weight.grad for weight in weights)]


@pytest.mark.parametrize("way", ["together", "together, compiled"])
def test_gradients_are_those_of_autograd(way: str) -> None:
    for found, expected in zip(gradients(way), gradients("plain"), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", ["together, bf16", "together, bf16, compiled"])
def test_weights_are_cast_as_autocast_does(way: str) -> None:
    for found, expected in zip(gradients(way), gradients("plain, bf16"), strict=True):
        assert found.dtype == expected.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_the_runs_of_a_step_compile_once() -> None:
    from torch._dynamo.testing import CompileCounter

    block = Block()
    counter = CompileCounter()
    block.compile(backend=counter)
    for _ in range(2):
        call = together(block)
        for _ in range(3):
            pair = Pair(torch.randn(3, 4), torch.zeros(3))
            call(pair, 1, torch.ones(()))[1].backward()
    assert counter.frame_count == 1


def test_every_weight_is_handed_its_gradient_once() -> None:
    """What DDP and FSDP wait for."""
    hooks: list[str] = []
    gradients("together", hooks)
    assert sorted(hooks) == ["extra", "linear.bias", "linear.weight", "second_bias"]


def test_it_works_again_in_the_next_step() -> None:
    torch.manual_seed(0)
    block = Block()
    weights = [weight for weight in block.parameters() if weight.requires_grad]
    start = torch.randn(3, 4)
    seen = []
    for _ in range(2):
        block.zero_grad()
        run(block, together(block), start).backward()
        seen.append([weight.grad for weight in weights])
    torch.testing.assert_close(seen[0], seen[1])


def test_where_nothing_is_saved_it_is_the_module_itself() -> None:
    block = Block()
    assert reused(block) is block  # not on CUDA
    with torch.no_grad():
        assert reused(block) is block


def test_gradients_are_added_in_one_launch_for_each_type_and_layout() -> None:
    """torch takes lists of one type and layout in a launch, others tensor by tensor."""
    turned = torch.ones(2, 3, dtype=torch.bfloat16).T
    runs = [
        [torch.ones(2), torch.ones(3, 2, dtype=torch.bfloat16), torch.ones(2), None],
        [torch.ones(2), turned, torch.ones(2), torch.ones(1)],
    ]
    sums = _Sums()
    with Lists() as seen:
        for gradients in runs:
            sums.add(gradients)
    for operation in seen.calls:
        assert len({(one.dtype, one.stride() == other.stride()) for one, other in operation}) == 1
    assert len(seen.calls) == 2
    taken = sums.take()
    assert [float(taken[number].float().mean()) for number in range(4)] == [2, 2, 2, 1]


class Lists(TorchDispatchMode):
    """Collects the pairs of tensors that are added list by list."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[tuple[Tensor, Tensor]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is torch.ops.aten._foreach_add_.List:
            self.calls.append(list(zip(*arguments[:2], strict=True)))
        return function(*arguments, **(options or {}))
