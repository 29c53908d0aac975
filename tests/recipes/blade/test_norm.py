"""overt/recipes/blade/norm.py: batch norm that stays, and batch norm of all ranks' samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from overt.distributed import init_distributed
from overt.recipes.blade.norm import FrozenBatchNorm2d, SharedBatchNorm2d


def test_frozen_batch_norm_never_moves() -> None:
    norm = FrozenBatchNorm2d(3).train()
    maps = torch.randn(4, 3, 5, 5) + 2
    norm(maps)
    assert not norm.training
    assert torch.equal(norm.running_mean, torch.zeros(3))


def shared_norm(count: int) -> tuple[list[float], list[float]]:
    """Gradient and running statistics of batch norm over the processes' parts of one batch."""
    world = init_distributed("cpu")
    torch.manual_seed(0)
    maps = torch.randn(4, 3, 5, 5) + torch.arange(4.0)[:, None, None, None]
    share = 4 // count
    own = maps[world.rank * share : (world.rank + 1) * share].clone().requires_grad_()
    norm = SharedBatchNorm2d(3).train()
    out = norm(own)
    (out.square() * torch.arange(75.0).view(3, 5, 5)).sum().backward()
    assert own.grad is not None
    assert norm.running_mean is not None
    return own.grad.flatten().tolist(), [*norm.running_mean.tolist(), *norm.running_var.tolist()]


def test_batch_norm_is_that_of_all_processes_samples(
    run_processes: Callable[..., list[Any]],
) -> None:
    gradient, statistics = shared_norm(1)
    parts = run_processes(shared_norm, 2, 2)
    assert parts[0][0] + parts[1][0] == pytest.approx(gradient, abs=1e-4)
    for _, found in parts:
        assert found == pytest.approx(statistics, abs=1e-5)
