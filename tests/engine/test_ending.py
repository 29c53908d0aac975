"""overt/engine/ending.py: whatever ends a run, it is saved where possible, explained and closed."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_recipe.recipe import Toy
from toy_runs import make_trainer, read_events, same_bits, toy_config, train_toy, weights

from overt.distributed import World, get_rank
from overt.engine.ending import Ending
from overt.engine.state import State
from overt.errors import (
    DataError,
    LaunchError,
    NonFiniteError,
    OutOfMemory,
    Preempted,
    StopError,
    StoppedAtStart,
)
from overt.recipe import StepOutput
from overt.run.session import Run

RUNS = Callable[..., list[Any]]


class Calls(list[str]):
    """A list of what was called, in order."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.append(name)


def end(
    error: BaseException | None, world_size: int = 1, state: State | None = None
) -> tuple[Calls, BaseException | None]:
    """What is done, in order, where `error` ends a run; and what comes out of it."""
    calls = Calls()
    run: Any = SimpleNamespace(world=World(0, world_size, 0, torch.device("cpu")))
    ending = Ending(None, state or State(step=3), None, calls, calls, run)  # type: ignore[arg-type]
    try:
        with ending.in_order(calls.save, calls.close):
            if error is not None:
                raise error
    except BaseException as raised:
        return calls, raised
    return calls, None


WHOLE = ["save", "wait", "leave_together", "close"]


# --- what is done ---------------------------------------------------------------------------------


def test_a_run_that_reaches_its_end_is_closed() -> None:
    assert end(None) == (["close"], None)


@pytest.mark.parametrize("kind", [StopError, NonFiniteError, Preempted])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_that_stops_itself_saves_waits_for_the_files_and_for_all_ranks(
    kind: type[StopError], world_size: int
) -> None:
    error = kind("stop")
    assert end(error, world_size) == (WHOLE, error)


def test_a_step_that_is_saved_is_not_saved_again_by_a_signal() -> None:
    saved = State(step=3, saved_step=3)
    assert end(Preempted("SIGTERM"), state=saved)[0] == WHOLE[1:]
    # After NaN the newest state counts, whatever was saved of this step before.
    assert end(NonFiniteError("NaN"), state=saved)[0] == WHOLE


def test_a_broken_sample_is_one_ranks_own_so_only_a_run_of_one_saves() -> None:
    assert end(DataError("broken"))[0] == ["save", "close"]
    assert end(DataError("broken"), world_size=2)[0] == ["close"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), ValueError("x")])
def test_anything_else_is_closed_and_passed_on(error: BaseException) -> None:
    assert end(error, world_size=2) == (["close"], error)


def test_a_failed_save_is_what_the_user_hears_of(tmp_path: Path) -> None:
    calls = Calls()
    run: Any = SimpleNamespace(world=World(0, 1, 0, torch.device("cpu")))
    ending = Ending(None, State(), None, calls, calls, run)  # type: ignore[arg-type]

    def full_disk() -> None:
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(OSError, match="No space left"),
        ending.in_order(full_disk, calls.close),
    ):
        raise Preempted("SIGTERM")
    assert calls == ["close"]


# --- two ranks, of which one writes slowly --------------------------------------------------------


class StopsItself(Toy):
    """Ends every rank at the same step."""

    def loss(
        self, model: nn.Module, batch: Any, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        if step == 2:
            raise StopError("enough")
        return super().loss(model, batch, counts, step)


def leaves_after_the_files(folder: Path, slow_rank: int) -> bool:
    """Whether the slow rank's file was there when this rank's training ended."""
    trainer = make_trainer(folder, "checkpoint.every_steps=100", recipe=StopsItself)
    written, rank = folder / "written", get_rank()

    def write() -> None:
        time.sleep(1.5)  # as a large model on a slow disk; in the background, as overt does
        written.write_text("everything")

    writer = threading.Thread(target=write)
    if rank == slow_rank:
        trainer.manager.save_checkpoint = lambda *_, **__: writer.start()
        trainer.manager.wait = lambda: writer.join() if writer.ident else None
    else:
        trainer.manager.save_checkpoint = lambda *_, **__: None
    with pytest.raises(StopError, match="enough"):
        trainer.train()
    there = written.exists()
    del trainer  # before the process group goes
    return there


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_no_rank_leaves_before_all_files_are_written(
    slow_rank: int, run_processes: RUNS, tmp_path: Path
) -> None:
    """A launcher ends all ranks once the first has left: the others' files would be lost."""
    assert run_processes(leaves_after_the_files, 2, tmp_path, slow_rank) == [True, True]


# --- what is said ---------------------------------------------------------------------------------


def test_out_of_memory_names_step_place_and_settings(tmp_path: Path) -> None:
    class Hungry(Toy):
        def loss(self, model: Any, batch: Any, counts: Any, step: int) -> StepOutput:
            if step == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().loss(model, batch, counts, step)

    trainer = make_trainer(tmp_path, recipe=Hungry)
    with pytest.raises(OutOfMemory) as raised:
        trainer.train()
    assert "step 1" in str(raised.value)
    assert "computing" in str(raised.value)
    assert "training.batch_size" in str(raised.value)
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def test_a_lost_peer_is_an_event_and_says_what_to_do(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.timeout_minutes=7")
    run = Run(config, World(0, 2, 0, torch.device("cpu")))
    run.open(None, None)
    calls = Calls()
    ending = Ending(None, State(step=3), None, calls, calls, run)  # type: ignore[arg-type]
    lost = RuntimeError("Connection closed by peer [127.0.0.1]:1234\nlong\ntrace")
    with (
        pytest.raises(LaunchError) as raised,
        ending.in_order(calls.save, lambda _: run.close(1)),
    ):
        raise lost
    assert "rank 0 at step 3: another process, or the link to it, is gone" in str(raised.value)
    assert "training.timeout_minutes=7" in str(raised.value)
    assert raised.value.__cause__ is lost
    (event,) = read_events(tmp_path / "toy", "lost_peer")
    assert (event["step"], event["error"]) == (3, "Connection closed by peer [127.0.0.1]:1234")
    assert calls == ["asked_at_start"]  # alone it saves nothing


def test_alone_there_is_no_peer_to_lose(tmp_path: Path) -> None:
    error = RuntimeError("Connection closed by peer")
    assert end(error) == (["close"], error)


class StopsAfterAStep(Toy):
    is_willing = False

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        super().after_step(model, step, applied, carry)
        if step == 2 and not self.is_willing:
            raise StopError("enough")


def test_a_step_that_the_recipe_ends_the_run_after_is_not_made_again(tmp_path: Path) -> None:
    """Its weights are saved: a checkpoint that counts one step less would repeat it."""
    words = ["training.num_steps=5", "checkpoint.every_steps=100"]
    trainer = make_trainer(tmp_path / "stopped", *words, recipe=StopsAfterAStep)
    with pytest.raises(StopError, match="enough"):
        trainer.train()
    trainer = make_trainer(tmp_path / "stopped", *words, recipe=StopsAfterAStep)
    assert trainer.state.step == 3
    trainer.recipe.is_willing = True
    trainer.train()
    train_toy(tmp_path / "straight", *words)
    ends = [weights(tmp_path / name / "toy", 5) for name in ("stopped", "straight")]
    assert same_bits(*ends)


def test_a_peer_that_left_the_start_for_a_signal_is_no_error(tmp_path: Path) -> None:
    """All ranks got the signal; the one that left first must not make the others fail."""

    class Asked(Calls):
        def asked_at_start(self) -> StoppedAtStart:
            return StoppedAtStart("SIGTERM")

    run = Run(toy_config(tmp_path), World(1, 2, 1, torch.device("cpu")))
    ending = Ending(None, State(), None, Asked(), Calls(), run)  # type: ignore[arg-type]
    ends: list[BaseException | None] = []
    with pytest.raises(StoppedAtStart), ending.in_order(pytest.fail, ends.append):
        raise RuntimeError("Connection closed by peer")
    run.close(85)
    assert [type(end) for end in ends] == [StoppedAtStart]


def test_a_stop_during_compilation_is_no_error() -> None:
    """Torch raises an error of its own in place of the stop."""
    asked, failed = StoppedAtStart("SIGTERM"), RuntimeError("the backend failed")
    failed.__context__ = asked
    assert end(failed) == (["close"], asked)
