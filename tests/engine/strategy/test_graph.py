"""overt/engine/strategy/graph.py: a replayed run equals the run without a graph; refusals."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_runs import losses_by_step, toy_config

from overt.config import build_recipe
from overt.distributed import init_distributed
from overt.engine.strategy.graph import (
    MOST,
    WARM_UP,
    GraphedPass,
    Recording,
    check_replayable,
    host_waits,
)
from overt.engine.trainer import Trainer
from overt.errors import ConfigError
from overt.recipe import StepOutput

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(folder: Path, *overrides: str, replayable: bool = True) -> Trainer:
    config = toy_config(folder, *overrides)
    recipe: Any = build_recipe(config)
    recipe.replayable = replayable
    return Trainer(config, recipe, init_distributed(config.training.device))


def test_a_graph_needs_cuda_and_a_recipe_that_can_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CUDA graphs need CUDA"):
        make(tmp_path, "training.cuda_graph=true", "training.device=cpu")


def test_a_recipe_can_say_which_setting_stands_in_the_way() -> None:
    class Changing:
        replayable = "data.size=null gives every batch its own shape; set a number"

    with pytest.raises(ConfigError, match=r"data\.size=null .* a number, or set training\.cuda_gr"):
        check_replayable(Changing(), torch.device("cuda"))


def test_waits_of_the_host_are_told_from_other_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    places: list[str] = []

    def watch() -> None:
        with host_waits(places):
            for text in ("called a synchronizing CUDA operation", "something else"):
                warnings.warn(text, UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        watch()
    assert modes == ["warn", 0]
    assert len(places) == 1
    assert "test_graph.py, line " in places[0]


class Rerun:
    """Stands for a CUDA graph: runs the pass again, into the memory of the recording."""

    def __init__(self, passes: GraphedPass, batch: Tensor, counts: dict[str, Tensor]) -> None:
        self.passes, self.batch, self.counts = passes, batch, counts
        self.gradients = [torch.zeros_like(each) for each in passes.parameters]
        self.numbers = torch.zeros(1)

    def replay(self) -> None:
        for other in self.passes.recordings.values():  # they share a memory pool
            for gradient in other.gradients:
                assert gradient is not None
                gradient.fill_(torch.nan)
        parameters = self.passes.parameters
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.numbers.copy_(self.passes.run(self.batch, self.counts).total.detach())
        for parameter, held, earlier in zip(parameters, self.gradients, before, strict=True):
            assert parameter.grad is not None
            held.copy_(parameter.grad)
            parameter.grad = earlier


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(passes: GraphedPass, batch: Tensor, counts: dict[str, Tensor]) -> Recording:
        graph: Any = Rerun(passes, batch.clone(), counts)
        output = StepOutput({"l": torch.zeros(())})
        inputs = [graph.batch]
        return Recording(graph, inputs, graph.gradients, output, {}, graph.numbers)

    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(GraphedPass, "_record", record)
    monkeypatch.setattr(GraphedPass, "_warm_up", lambda self, *inputs, is_last: self.run(*inputs))


def test_micro_batches_of_several_recordings_add_up(without_cuda: None) -> None:
    """Two kinds of passes of two shapes, in any order within a step, against autograd alone."""
    weight = nn.Parameter(torch.ones(3))
    factor = {"now": 1.0}

    def run(batch: Tensor, counts: dict[str, Tensor]) -> StepOutput:
        output = StepOutput({"l": factor["now"] * (batch * weight).square().sum()})
        output.total.backward()
        return output

    graphed = GraphedPass(run, [weight])
    draw = torch.Generator().manual_seed(0)
    for step in range(3 * (WARM_UP + 2)):
        given = [torch.randn(1 + step % 2, 3, generator=draw) for _ in range(2)]
        kinds = [1 + (step // 2) % 2, 1 + step % 2]
        expected = torch.zeros(3)
        for batch, kind in zip(given, kinds, strict=True):
            factor["now"] = float(kind)
            total = graphed(batch, {}, kind).total.detach()
            right = kind * (batch * weight.detach()).square().sum()
            torch.testing.assert_close(total, right)
            expected += 2 * kind * (batch.square() * weight.detach()).sum(0)
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, expected)
        weight.grad = None  # as the optimizer leaves it
    assert 1 < len(graphed.recordings) <= MOST


def test_where_recording_fails_the_pass_runs_as_ever(
    without_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*inputs: Any) -> Recording:
        weight.grad = None
        raise RuntimeError("operation not permitted\nwhen a stream is capturing")

    reset: list[int] = []
    state = SimpleNamespace(clone_state=lambda: 7, graphsafe_set_state=reset.append)
    stream = SimpleNamespace(device_index=0)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "default_generators", [state])
    monkeypatch.setattr(GraphedPass, "_record", break_off)
    weight = nn.Parameter(torch.ones(3))

    def run(batch: Tensor, counts: dict[str, Tensor]) -> StepOutput:
        output = StepOutput({"l": (batch * weight).sum()})
        output.total.backward()
        return output

    told: list[str] = []
    graphed = GraphedPass(run, [weight], told.append)
    for _ in range(WARM_UP + 3):
        graphed(torch.ones(3), {})
    assert told == ["RuntimeError: operation not permitted"]
    assert reset == [7]  # the generator is as it was
    torch.testing.assert_close(weight.grad, torch.full((3,), WARM_UP + 3.0))


@gpu
@needs_gpu
def test_a_recipe_has_to_say_that_it_can_be_replayed(tmp_path: Path) -> None:
    settings = ("training.cuda_graph=true", "training.device=cuda")
    with pytest.raises(ConfigError, match="replayable = True"):
        make(tmp_path, *settings, replayable=False)


@gpu
@needs_gpu
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_replayed_run_is_the_run_without_a_graph(accumulation: int, tmp_path: Path) -> None:
    """Over ends of epochs, with their short batches."""
    shape = (
        "training.device=cuda",
        "training.num_epochs=12",
        "training.num_steps=null",
        "training.batch_size=2",
        f"training.accumulation_steps={accumulation}",
        "training.global_batch_size=null",
        "logging.every_steps=1",
    )
    make(tmp_path / "plain", *shape, "training.cuda_graph=false").train()
    trainer = make(tmp_path / "graph", *shape, "training.cuda_graph=true")
    trainer.train()
    assert isinstance(trainer.graphed, GraphedPass)
    assert trainer.graphed.recordings
    expected = losses_by_step(tmp_path / "plain/toy")
    assert losses_by_step(tmp_path / "graph/toy") == pytest.approx(expected, rel=1e-5)


@gpu
@needs_gpu
@pytest.mark.parametrize("obstacle", ["item", "synchronize"])
def test_auto_goes_on_where_a_pass_cannot_be_recorded(obstacle: str, tmp_path: Path) -> None:
    """Whether it is seen before the recording, or breaks it: dropout and all, no step is lost."""
    shape = ("training.device=cuda", "training.num_steps=8", "logging.every_steps=1")
    shape = (*shape, "model.dropout=0.2")
    make(tmp_path / "plain", *shape, "training.cuda_graph=false").train()
    trainer = make(tmp_path / "auto", *shape)
    loss = trainer.recipe.loss

    def waiting(model: Any, batch: Any, counts: Any, step: int) -> Any:
        output = loss(model, batch, counts, step)
        if obstacle == "item":
            float(output.total)
        else:
            torch.cuda.synchronize()
        return output

    trainer.recipe.loss = waiting  # type: ignore[method-assign]
    trainer.train()
    assert trainer.graphed is not None
    assert not trainer.graphed.recordings
    assert trainer.graphed.problem is not None
    assert trainer.speed.speed.training.cuda_graph is False
    assert "speed_given_up" in (tmp_path / "auto/toy/events.jsonl").read_text()
    expected = losses_by_step(tmp_path / "plain/toy")
    assert losses_by_step(tmp_path / "auto/toy") == pytest.approx(expected, rel=1e-5)


@gpu
@needs_gpu
@pytest.mark.parametrize("accumulation", [1, 2])
def test_steps_that_differ_have_a_recording_each(accumulation: int, tmp_path: Path) -> None:
    """One memory pool serves both: no gradient is lost between micro-batches and steps."""
    shape = (
        "training.device=cuda",
        "training.num_epochs=null",
        "training.num_steps=24",
        "training.drop_last=true",
        "training.batch_size=2",
        f"training.accumulation_steps={accumulation}",
        "training.global_batch_size=null",
        "logging.every_steps=1",
    )

    def train(folder: Path, graph: str) -> Trainer:
        trainer = make(folder, *shape, f"training.cuda_graph={graph}")
        loss = trainer.recipe.loss

        def varying(model: Any, batch: Any, counts: Any, step: int) -> Any:
            return loss(model, batch, counts, step).scaled(1.0 + step % 2)

        trainer.recipe.loss = varying  # type: ignore[method-assign]
        trainer.recipe.replays_at = lambda step: 1 + step % 2  # type: ignore[method-assign]
        trainer.train()
        return trainer

    train(tmp_path / "plain", "false")
    trainer = train(tmp_path / "graph", "true")
    assert trainer.graphed is not None
    assert len(trainer.graphed.recordings) == 2
    expected = losses_by_step(tmp_path / "plain/toy")
    assert losses_by_step(tmp_path / "graph/toy") == pytest.approx(expected, rel=1e-5)
