"""Live bytes are those of storages: rounded, counted once, gone with their last tensor."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from overt.tools.plan.live_memory import BLOCK, LiveMemory, rounded


def test_sizes_are_rounded_up_to_blocks() -> None:
    assert [rounded(count) for count in (0, 1, BLOCK, BLOCK + 1)] == [0, BLOCK, BLOCK, 2 * BLOCK]


def test_a_storage_counts_once_and_goes_with_its_last_tensor() -> None:
    size = 4 * 1024
    with FakeTensorMode(), LiveMemory() as memory:
        x = torch.empty(1024)
        assert memory.total == size
        view = x.view(32, 32)[3:]
        x += 1
        assert memory.total == size
        y = x * 2
        assert memory.total == 2 * size
        del x
        assert memory.total == 2 * size  # the view still needs it
        del view
        assert memory.total == size
        del y
        assert (memory.total, memory.peak) == (0, 2 * size)


def test_peak_of_a_chain_is_two_links_and_of_autograd_all() -> None:
    size, links = 4 * 2**20, 5
    with FakeTensorMode(), LiveMemory() as memory:
        x = torch.empty(2**20)
        for _ in range(links):
            x = x.exp()
        assert memory.peak == 2 * size
        memory.reset()
        y = x.requires_grad_()
        for _ in range(links):
            y = y.exp()  # keeps its result for the backward pass
        assert memory.peak == (1 + links) * size


def test_purposes_and_the_peak_without_gradients() -> None:
    with FakeTensorMode(), LiveMemory() as memory:
        weight = torch.empty(1024, requires_grad=True)
        memory.assign([weight], "parameters")
        (weight * 2).sum().backward()
        assert weight.grad is not None
        memory.assign([weight.grad], "gradients")
        assert memory.live["parameters"] == memory.live["gradients"] == 4096
        memory.reset()
        extra = torch.empty(2048)
        assert memory.peak == 4096 + 4096 + 8192
        assert memory.peak_besides_gradients == 4096 + 8192
        assert memory.at_peak["activations"] >= 8192
        del extra


def test_flops_of_a_linear_layer_are_those_of_its_three_products() -> None:
    batch, inputs, outputs = 8, 32, 16
    with FakeTensorMode(), LiveMemory() as memory:
        layer = torch.nn.Linear(inputs, outputs)
        x = torch.empty(batch, inputs, requires_grad=True)
        memory.reset()
        layer(x).sum().backward()
        assert memory.flops == 3 * 2 * batch * inputs * outputs
