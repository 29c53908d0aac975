"""overt/engine/state.py: where a run stands, and the recipe's own state, come back exactly."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_recipe.recipe import Toy
from toy_runs import cut_back, make_trainer

from overt.engine.loader import Position
from overt.engine.state import State, join_recipe_state, split_recipe_state
from overt.recipe import StepOutput

RUNS = Callable[..., list[Any]]


def moved() -> State:
    return State(
        step=7,
        position=Position(1, 4),
        skipped=2,
        skipped_in_a_row=1,
        scores={"error": 0.5},
        evaluated_step=6,
        wandb_run_id="abc",
        saved_step=7,
        finished="enough",
    )


def test_everything_but_scores_and_the_save_itself_comes_back_through_json() -> None:
    state = State()
    state.load_state_dict(json.loads(json.dumps(moved().state_dict())))
    assert state == State(
        step=7,
        position=Position(1, 4),
        skipped=2,
        skipped_in_a_row=1,
        evaluated_step=6,
        wandb_run_id="abc",
        finished="enough",
    )
    assert isinstance(state.position, Position)


def test_a_state_from_before_evaluation_and_ends_were_stored_is_read() -> None:
    old = moved().state_dict()
    del old["evaluated_step"], old["finished"]
    state = State()
    state.load_state_dict(old)
    assert (state.evaluated_step, state.finished) == (7, None)


def test_a_skipped_step_is_no_update() -> None:
    assert moved().updates == 5


def test_a_run_that_starts_from_another_ones_checkpoint_has_its_own_id_in_wandb(
    tmp_path: Path,
) -> None:
    trainer = make_trainer(tmp_path, "training.num_steps=1")
    trainer.state.wandb_run_id = "abc"
    trainer.train()
    del trainer  # the folder is free again
    named = f"checkpoint.resume={tmp_path}/toy/checkpoints/latest"
    assert make_trainer(tmp_path, named, "training.num_steps=1").state.wandb_run_id == "abc"
    fork = make_trainer(tmp_path, named, "training.num_steps=1", "exp_name=fork")
    assert (fork.state.step, fork.state.wandb_run_id) == (1, None)


def test_a_step_is_saved_until_the_next_is_done() -> None:
    state = moved()
    assert state.is_saved
    state.step += 1
    assert not state.is_saved
    assert not State().is_saved


def test_a_resume_is_described_by_checkpoint_step_and_position() -> None:
    text = moved().describe(Path("runs/x/checkpoints/step_00000007"))
    assert text == (
        "runs/x/checkpoints/step_00000007 at step 7: epoch 1, sample 4, nothing replayed"
    )


# --- the recipe's own state -----------------------------------------------------------------------


def test_tensors_and_plain_values_are_told_apart_and_joined() -> None:
    state = {"queue": torch.arange(3), "pointer": 2, "names": ["a"], "scale": torch.tensor(0.5)}

    class Queue(Toy):
        def state_dict(self) -> dict[str, Any]:
            return state

    tensors, plain = split_recipe_state(object.__new__(Queue))
    assert tensors.keys() == {"recipe/queue", "recipe/scale"}
    assert plain == {"pointer": 2, "names": ["a"]}
    others = {"rank0/torch": torch.zeros(1)}  # generators lie beside them
    joined = join_recipe_state(tensors | others, {"step": 3, "recipe": plain})
    assert joined == state
    assert join_recipe_state(others, {"step": 3}) == {}  # of an older checkpoint


class Remembers(Toy):
    """Has a state of every kind, changed by each step, and refuses a second `load_state_dict`."""

    gathers_carry = True  # so that the state is the same on every rank

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.trace = torch.zeros(4, dtype=torch.float64)
        self.history: list[float] = []
        self.worst: dict[str, Any] = {"norm": -math.inf, "step": None}
        self.loaded: dict[str, Any] | None = None

    def loss(self, model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> StepOutput:
        output = super().loss(model, batch, counts, step)
        return replace(output, carry={"inputs": batch.inputs})

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        super().after_step(model, step, applied, carry)
        inputs = carry["inputs"].double()
        norm = float(inputs.norm())
        self.trace = self.trace * 0.5 + inputs.sum(0)
        self.history.append(norm)
        if norm > self.worst["norm"]:
            self.worst = {"norm": norm, "step": step}

    def state_dict(self) -> dict[str, Any]:
        return {"trace": self.trace, "history": self.history, "worst": self.worst}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.loaded is None
        self.loaded = dict(state)
        self.trace, self.history, self.worst = state["trace"], state["history"], state["worst"]


EVERY_STEP = ["checkpoint.every_steps=1", "checkpoint.keep_last_n=20"]


def final_state(folder: Path, *overrides: str) -> tuple[bool, list[float], list[float], Any]:
    trainer = make_trainer(folder, *EVERY_STEP, *overrides, recipe=Remembers)
    trainer.train()
    recipe = trainer.recipe
    del trainer  # before the process group goes
    return recipe.loaded is not None, recipe.trace.tolist(), recipe.history, recipe.worst


@pytest.mark.parametrize(
    ("size", "strategy"), [(1, "auto"), (2, "ddp"), (2, "fsdp")], ids=["alone", "ddp", "fsdp"]
)
def test_it_survives_a_resume(
    size: int, strategy: str, run_processes: RUNS, tmp_path: Path
) -> None:
    settings = [f"training.strategy={strategy}"]
    whole = run_processes(final_state, size, tmp_path, *settings)
    cut_back(tmp_path / "toy", tmp_path / "cut/toy", 7)
    resumed = run_processes(final_state, size, tmp_path / "cut", *settings)
    assert [answer[0] for answer in whole] == [False] * size
    assert [answer[0] for answer in resumed] == [True] * size
    assert len(whole[0][2]) == 12
    for one, other in zip(whole, resumed, strict=True):
        assert one[1:] == other[1:]  # to the last bit


def test_more_processes_get_the_state_of_fewer(run_processes: RUNS, tmp_path: Path) -> None:
    one = ["training.global_batch_size=4", "training.batch_size=null"]
    final_state(tmp_path, *one)
    cut_back(tmp_path / "toy", tmp_path / "cut/toy", 7)
    both = run_processes(final_state, 2, tmp_path / "cut", *one)
    assert both[0] == both[1]
    assert both[0][0]
    assert len(both[0][2]) == 12
