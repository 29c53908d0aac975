"""overt/engine/carry.py: what `loss` hands on arrives detached, in the global batch's order."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_recipe.recipe import Toy
from toy_runs import make_trainer

from overt.config.batch import BatchPlan
from overt.engine.carry import carried
from overt.engine.loader import MicroBatch, SampleId, StepBatch
from overt.errors import ConfigError
from overt.recipe import StepOutput

RUNS = Callable[..., list[Any]]
# 10 samples: the third step of an epoch has two of them, and leaves nothing for some ranks.
GLOBAL_FOUR = ["training.global_batch_size=4", "training.num_steps=6"]


class Remembers(Toy):
    """Hands on the indices of the samples, and keeps what `after_step` gets."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.seen: list[dict[str, list[Any]]] = []

    def loss(self, model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> StepOutput:
        index = torch.tensor(batch.indices)
        carry = {"index": index, "inputs": batch.inputs, "is_even": index % 2 == 0}
        return replace(super().loss(model, batch, counts, step), carry=carry)

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        super().after_step(model, step, applied, carry)
        self.seen.append({name: tensor.tolist() for name, tensor in carry.items()})


class RemembersAll(Remembers):
    gathers_carry = True


def carried_by_step(
    folder: Path, *overrides: str, gathers: bool = True
) -> list[dict[str, list[Any]]]:
    """What `after_step` gets on this rank in every step of a run."""
    kind = RemembersAll if gathers else Remembers
    trainer = make_trainer(folder, *GLOBAL_FOUR, *overrides, recipe=kind)
    trainer.train()
    seen: list[dict[str, list[Any]]] = trainer.recipe.seen
    del trainer  # before the process group goes
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_and_accumulation_gather_what_one_process_has(
    size: int, run_processes: RUNS, tmp_path: Path
) -> None:
    """With 2 ranks a step is 2 micro-batches of 1, with 3 it is one of 2 and the last is empty."""
    split = ["training.batch_size=1"]
    if size == 3:
        split = ["training.batch_size=2", "training.global_batch_size=6"]
    whole = [split[-1]] if size == 3 else []
    alone = carried_by_step(tmp_path / "one", "training.batch_size=null", *whole)
    for seen in run_processes(carried_by_step, size, tmp_path / "several", *split):
        assert seen == alone
    lengths = [len(step["index"]) for step in alone]
    assert lengths == ([4, 4, 2] * 2 if size == 2 else [6, 4] * 3)
    # Every sample of an epoch once; the rows of all tensors belong to each other.
    assert sorted(index for step in alone[: 10 // lengths[0] + 1] for index in step["index"]) == [
        *range(10)
    ]
    assert all(
        even == (index % 2 == 0)
        for step in alone
        for index, even in zip(step["index"], step["is_even"], strict=True)
    )


def test_without_gathering_each_rank_has_its_own_samples_and_no_padding(
    run_processes: RUNS, tmp_path: Path
) -> None:
    alone = carried_by_step(tmp_path / "one", "training.batch_size=null")
    split = ["training.batch_size=1"]
    one, other = run_processes(carried_by_step, 2, tmp_path / "two", *split, gathers=False)
    for whole, first, second in zip(alone, one, other, strict=True):
        # Micro-batch m of rank r is slice m x 2 + r of the global batch.
        assert first["index"] == whole["index"][0::2]
        assert second["index"] == whole["index"][1::2]
    halves = run_processes(
        carried_by_step, 2, tmp_path / "halves", "training.batch_size=2", gathers=False
    )
    assert [len(step["index"]) for step in halves[0]] == [2, 2, 2] * 2
    assert [len(step["index"]) for step in halves[1]] == [2, 2, 0] * 2  # only padding is left


def output(rows: Tensor) -> StepOutput:
    return StepOutput({"loss": torch.zeros(())}, carry={"rows": rows})


def step_of(*sizes: int) -> StepBatch:
    """A step of so many micro-batches; an empty one is padding."""
    micros = [MicroBatch((SampleId(0, 0),), None, is_padding=size == 0) for size in sizes]
    return StepBatch(micros, sum(sizes), 0.0)


def test_tensors_arrive_detached_and_without_those_of_padding() -> None:
    rows = torch.randn(2, 3, requires_grad=True)
    padding = torch.randn(1, 3, requires_grad=True)
    batch = step_of(2, 2, 0)
    outputs = [output(rows * 1), output(rows * 2), output(padding * 3)]
    together = carried(outputs, batch, BatchPlan(2, 3, 1), gathers=True)
    assert not together["rows"].requires_grad
    assert torch.equal(together["rows"], torch.cat([rows, 2 * rows]).detach())
    only_padding = carried([output(padding)], step_of(0), BatchPlan(2, 1, 1), gathers=False)
    assert only_padding["rows"].shape == (0, 3)


def test_a_recipe_that_hands_on_nothing_gets_nothing() -> None:
    nothing = StepOutput({"loss": torch.zeros(())})
    assert carried([nothing], step_of(2), BatchPlan(2, 1, 2), gathers=True) == {}


@pytest.mark.parametrize("rows", [torch.tensor(1.0), torch.zeros(3, 2)], ids=["scalar", "many"])
def test_what_has_no_row_per_sample_cannot_be_gathered(rows: Tensor) -> None:
    with pytest.raises(ConfigError, match=r"carry\['rows'\] has the shape .*up to 2 samples"):
        carried([output(rows)], step_of(2), BatchPlan(2, 1, 2), gathers=True)


@pytest.mark.parametrize("value", [3.0, torch.tensor(3.0)])
def test_what_has_no_rows_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"carry\['rows'\] is .*; expected a tensor \(samples,"):
        carried([output(value)], step_of(2), BatchPlan(2, 1, 1), gathers=False)
