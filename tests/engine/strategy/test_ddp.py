"""overt/engine/strategy/ddp.py: the mean over ranks without DDP."""

from typing import Any

import torch
from torch import nn

from overt.distributed import init_distributed
from overt.engine.strategy.ddp import average_over_ranks


def mean_of_two(factor: float) -> list[float]:
    world = init_distributed("cpu")
    layer = nn.Linear(2, 1)
    layer.weight.grad = torch.full((1, 2), factor * (world.rank + 1))
    layer.bias.grad = torch.tensor([10.0 * world.rank])
    unused = nn.Parameter(torch.zeros(3))
    average_over_ranks([layer.weight, unused, layer.bias])
    assert unused.grad is None
    return [*layer.weight.grad.flatten().tolist(), *layer.bias.grad.tolist()]


def test_gradients_of_all_processes_are_averaged(run_processes: Any) -> None:
    assert run_processes(mean_of_two, 2, 3.0) == [[4.5, 4.5, 5.0]] * 2


def passes_on(rank_with_gradient: int) -> list[list[float] | None]:
    world = init_distributed("cpu")
    sometimes, never = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    if world.rank == rank_with_gradient:
        sometimes.grad = torch.tensor([2.0, 4.0])
    for _ in range(2):  # a mean of what was averaged before is itself
        average_over_ranks([sometimes, never])
    return [None if value.grad is None else value.grad.tolist() for value in (sometimes, never)]


def test_a_gradient_that_one_process_lacks_is_zero_there(run_processes: Any) -> None:
    assert run_processes(passes_on, 2, 1) == [[[1.0, 2.0], None]] * 2
