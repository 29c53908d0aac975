"""overt/engine/strategy/ddp.py: of a pass before a resume nothing stays but DDP's buckets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_recipe.recipe import Toy
from toy_runs import make_trainer, same_bits

from overt.checkpoint import random_state
from overt.engine.loader import START, global_counts
from overt.engine.strategy.ddp import settle_buckets

DROPOUT = "model.dropout=0.5"


def test_nothing_stays_of_the_pass(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, DROPOUT)
    batch = trainer.loader.first_step()
    counts = global_counts(trainer.recipe, batch, trainer.device)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    generators = random_state.capture()
    settle_buckets(batch, counts, trainer.add_gradients, trainer.optimizer)
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
    """Over two, a sum has the same bits in either order."""
    assert run_processes(calls_of_a_resume, 2, tmp_path / "two") == [0, 0]
    assert run_processes(calls_of_a_resume, 3, tmp_path / "three") == [1, 1, 1]
