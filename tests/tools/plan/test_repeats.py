"""overt/tools/plan/repeats.py: a result that is made again is the one that torch works out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from toy_recipe.recipe import Toy
from toy_runs import toy_config

from overt.recipe import StepOutput
from overt.tools.plan.engine_step import EngineStep, StepMemory
from overt.tools.plan.live_memory import LiveMemory
from overt.tools.plan.repeats import Call


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveMemory, "repeats", {})


def described(value: Any, arguments: list[Tensor]) -> Any:
    """A result's shapes, and what it lies on."""
    if isinstance(value, list | tuple):
        return type(value), [described(part, arguments) for part in value]
    storages = [tensor.untyped_storage()._cdata for tensor in arguments]
    storage = value.untyped_storage()
    on = storages.index(storage._cdata) if storage._cdata in storages else None
    same = [tensor is value for tensor in arguments]
    layout = (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device)
    return (*layout, value.requires_grad, storage.nbytes(), on, same)


# Operators with results that are new, views, arguments, several, or on each other's storage.
CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda a, b: a @ b.t(),
    "view": lambda a, b: a[1:].t(),
    "expanded": lambda a, b: a[:, :1].expand(6, 8),
    "in place": lambda a, b: a.add_(b),
    "itself": lambda a, b: a.add_(a),
    "split": lambda a, b: a.split([2, 4]),
    "unbound": lambda a, b: b.unbind(1),
    "several": lambda a, b: torch.nn.functional.layer_norm(a, [8]),
    "largest": lambda a, b: torch.topk(a, 2),
    "other type": lambda a, b: a.to(torch.bfloat16),
    "of numbers": lambda a, b: torch.clamp(a, 0, 1.5),
    "reinterpreted": lambda a, b: a.view(torch.int32),
    "complex": lambda a, b: torch.fft.rfft(a).abs(),
    "dropped": lambda a, b: torch.native_dropout(a, 0.1, True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_gives_what_torch_does(name: str) -> None:
    memory = LiveMemory()
    with FakeTensorMode(), memory, torch.no_grad():
        seen = []
        for _ in range(3):  # worked out, then made again
            arguments = [torch.empty(6, 8), torch.empty(6, 8)]
            memory.reset()
            before = (memory.total, memory.flops)
            result = CALLS[name](*arguments)
            seen.append(
                (
                    described(result, arguments),
                    memory.total - before[0],
                    memory.peak - before[0],
                    memory.flops,
                )
            )
            del result, arguments
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]
    if name not in ("itself", "complex"):
        assert any(memory.repeats.values())


def test_one_and_one_point_nought_are_different_calls() -> None:
    add = torch.ops.aten.add.Tensor
    with FakeTensorMode():
        whole = torch.empty(3, dtype=torch.int64)
        keys = [Call(add, (whole, number), {}).key for number in (1, 1.0, True)]
        assert len(set(keys)) == 3
        assert Call(add, (whole, 1), {}).key == keys[0]
        turned = torch.empty(4, 6).t()
        assert Call(add, (turned, 1), {}).key != Call(add, (torch.empty(6, 4), 1), {}).key


def test_what_depends_on_more_than_shapes_is_not_kept() -> None:
    with FakeTensorMode() as mode:
        x = torch.empty(3, 4)
        assert Call(torch.ops.aten.zeros.default, ([3],), {}).key is None  # of which mode?
        constant = mode.from_tensor(torch.tensor(2.0))
        constant.constant = torch.tensor(2.0)
        assert Call(torch.ops.aten.add.Tensor, (x, constant), {}).key is None
        turn = Call(torch.ops.aten.t_.default, (x,), {})
        assert turn.repeat(x.t_(), 0) is None
        copied = Call(torch.ops.aten.add.Tensor, (x, x), {})
        assert copied.repeat(x.as_strided((2,), (1,)), 0) is None  # which of the two is it on?
        part = torch.empty(10)[2:]
        assert copied.repeat(part, 0) is None


class Frames(Toy):
    """The same layers again and again, with views, dropout and values that are changed in place."""

    def build_model(self) -> Any:
        model: Any = super().build_model()
        model.norm = nn.LayerNorm(4)
        return model

    def loss(self, model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> StepOutput:
        x = batch.inputs
        for _ in range(3):
            left, right = model(model.norm(x)).split(2, dim=1)
            x = torch.cat([right, left], dim=1).clone().mul_(0.5) + x
        return StepOutput({"fit": x.square().sum() / counts["samples"]})


def test_a_step_has_the_numbers_that_it_has_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config(tmp_path, "training.precision=fp16", "model.dropout=0.1")

    def measured() -> StepMemory:
        recipe = Frames(config.settings)
        return EngineStep(config, recipe, checkpointing=False).run(recipe.example_batch(8), 8)

    first, again = measured(), measured()
    assert sum(repeat is not None for repeat in LiveMemory.repeats.values()) > 20

    class Forgetful(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            return

    monkeypatch.setattr(LiveMemory, "repeats", Forgetful())
    assert measured() == first == again
