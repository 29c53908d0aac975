"""overt/engine/strategy/ddp.py: a pass before a resume leaves no trace; the mean over ranks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from toy_recipe.recipe import Toy
from toy_runs import make_trainer, same_bits

from overt.checkpoint import random_state
from overt.distributed import init_distributed
from overt.engine.loader import global_counts
from overt.engine.order import START
from overt.engine.strategy.ddp import average_over_ranks, settle_buckets

DROPOUT = "model.dropout=0.5"


def test_nothing_stays_of_the_pass(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, DROPOUT)
    batch = trainer.loader.first_step()
    counts = global_counts(trainer.recipe, batch, trainer.device)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    generators = random_state.capture()
    passes = partial(trainer.add_gradients, batch.micro_batches, counts)
    settle_buckets(passes, trainer.parameters)
    assert same_bits(trainer.model.state_dict(), weights)
    assert same_bits(random_state.capture(), generators)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert trainer.loader.position == START
    assert trainer.state.step == 0
    trainer.close()


class Counting(Toy):
    """Counts how often its loss is computed."""

    calls = 0

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        type(self).calls += 1
        return super().loss(model, batch, counts, step)


def calls_of_a_resume(folder: Path) -> int:
    settings = ["training.num_steps=3", "checkpoint.every_steps=1"]
    trainer = make_trainer(folder, *settings, recipe=Counting)
    trainer.train_step()
    trainer.save()
    trainer.close()
    Counting.calls = 0
    resumed = make_trainer(folder, *settings, recipe=Counting)
    assert resumed.state.step == 1
    assert all(parameter.grad is None for parameter in resumed.model.parameters())
    calls = Counting.calls
    resumed.close()
    del trainer, resumed  # before the process group goes
    return calls


def test_only_three_or_more_ranks_need_it(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """Over two, a sum has the same bits in either order. A first pass looks at who is used."""
    assert run_processes(calls_of_a_resume, 2, tmp_path / "two") == [0, 0]
    assert run_processes(calls_of_a_resume, 3, tmp_path / "three") == [2, 2, 2]


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


class Buffered(Toy):
    """Has a buffer that every rank moves by itself, and looks at what `after_step` is given."""

    def build_model(self) -> Any:
        model = super().build_model()
        model.register_buffer("moved", torch.zeros(()))
        self.kind = type(model)
        return model

    def after_step(self, model: Any, step: int, applied: Any, carry: Any) -> None:
        super().after_step(model, step, applied, carry)
        assert type(model) is self.kind  # bare
        model.moved += 1 + torch.distributed.get_rank()


def buffers_after_two_steps(folder: Path) -> tuple[float, bool]:
    trainer = make_trainer(folder, recipe=Buffered)
    trainer.train_step()
    trainer.train_step()
    result = float(trainer.model.moved), trainer.wrapping.ddp is not None
    trainer.close()
    del trainer  # before the process group goes
    return result


def test_buffers_stay_and_after_step_gets_the_bare_model(
    run_processes: Any, tmp_path: Path
) -> None:
    assert run_processes(buffers_after_two_steps, 2, tmp_path) == [(2.0, True), (4.0, True)]
