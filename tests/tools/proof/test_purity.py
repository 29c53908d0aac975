"""What a loss changes is found and named; caches, norms and random numbers are told apart."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_recipe.recipe import Model, Toy
from toy_runs import TOY

import overt
from overt.distributed import init_distributed
from overt.tools.proof.purity import Purity, check_purity, fingerprints

CALLS: list[int] = []


def purity_of(kind: type[Toy], **model: Any) -> Purity:
    toy = overt.configure("toy", packages=[TOY], settings={"model": model})
    config = overt.configure(
        kind,
        settings=toy.settings,
        training={"num_steps": 9, "batch_size": 2, "num_workers": 0, "device": "cpu"},
    )
    return check_purity(config, init_distributed("cpu"))


def test_a_pure_loss() -> None:
    purity = purity_of(Toy)
    assert purity.difference is None
    assert purity.is_function_of_samples
    assert "6 parameters" in purity.compared


class Counting(Toy):
    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().loss(model, batch, counts, step)


class CountingForAll(Toy):
    calls = 0

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        type(self).calls += 1
        return super().loss(model, batch, counts, step)


class Remembering(Toy):
    """Keeps something of the first batch it sees."""

    center: Tensor | None = None

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        if self.center is None:
            self.center = batch.inputs.mean(0)
        return super().loss(model, batch, counts, step)


class Nested(Toy):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.state = {"queues": [np.zeros(3)]}

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        self.state["queues"][0] += 1
        return super().loss(model, batch, counts, step)


class WithQueue(Model):
    queue: Tensor

    def __init__(self, width: int, dropout: float, idle_layer: bool) -> None:
        super().__init__(width, dropout, idle_layer)
        self.register_buffer("queue", torch.zeros(3))


class Queueing(Toy):
    def build_model(self) -> Model:
        model = self.settings.model
        return WithQueue(model.width, model.dropout, model.idle_layer)

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        model.queue[0] = step + 1
        return super().loss(model, batch, counts, step)


class Moving(Toy):
    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        with torch.no_grad():
            model.target.weight.mul_(0.9)
        return super().loss(model, batch, counts, step)


class InPlace(Toy):
    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        batch.targets.add_(0.1)
        return super().loss(model, batch, counts, step)


class Elsewhere(Toy):
    """Depends on something out of sight."""

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        CALLS.append(step)
        return super().loss(model, batch, counts, step).scaled(1.0 + len(CALLS))


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Counting, "loss changed the recipe.calls: absent before, 1 after"),
        (CountingForAll, "loss changed vars(CountingForAll)['calls']: "),
        (Remembering, "loss changed the recipe.center: "),
        (Nested, "loss changed the recipe.state['queues'][0]: float64 (3,)"),
        (Queueing, "loss changed the buffer queue of the model: float32 (3,)"),
        (Moving, "loss changed the parameter target.weight of the model: "),
        (InPlace, "loss changed tensor 1 of the batch: float32 (2, 4)"),
        (Elsewhere, "it depends on what it changes (losses['fit'] is "),
    ],
)
def test_what_an_impure_loss_changes_is_named(kind: type[Toy], named: str) -> None:
    difference = purity_of(kind).difference
    assert difference is not None
    assert named in difference


class Caching(Toy):
    """Fills caches with what does not depend on the batch."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.grids: dict[torch.device, Tensor] = {}

    @cached_property
    def weight(self) -> Tensor:
        return torch.ones(1)

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        self.grids.setdefault(batch.inputs.device, torch.arange(4))
        assert self.weight == 1
        return super().loss(model, batch, counts, step)


class Normed(Toy):
    def build_model(self) -> Any:
        model = super().build_model()
        model.dropout = nn.BatchNorm1d(self.settings.model.width)  # type: ignore[assignment]
        return model


def test_a_cache_is_no_state() -> None:
    assert purity_of(Caching).difference is None


def test_batch_norm_and_dropout_are_pure_but_no_functions_of_samples() -> None:
    normed = purity_of(Normed)
    assert (normed.difference, normed.keeps_statistics, normed.is_random) == (None, True, False)
    dropping = purity_of(Toy, dropout=0.5)
    assert (dropping.difference, dropping.keeps_statistics) == (None, False)
    assert dropping.is_random
    assert not normed.is_function_of_samples
    assert not dropping.is_function_of_samples


def test_random_numbers_go_on_as_before() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    purity_of(Toy, dropout=0.5)
    assert torch.equal(torch.rand(3), expected)


@dataclass
class Slotted:
    __slots__ = ("value",)
    value: int


def test_fingerprints_reach_into_everything(tmp_path: Path) -> None:
    table = np.memmap(tmp_path / "table", np.float32, "w+", shape=(4,))
    generator = np.random.default_rng(0)
    value: dict[str, Any] = {
        "list": [1, (2.5, "three")],
        "set": {3, 1},
        "slots": Slotted(7),
        "generator": generator,
        "torch": torch.Generator().manual_seed(1),
        "map": table,
        "empty": torch.zeros(0, 2),
        "bits": torch.zeros((), dtype=torch.bfloat16),
        "function": purity_of,
    }
    value["itself"] = value
    first = dict(fingerprints(value, "v"))
    assert first["v['list'][1][1]"] == "'three'"
    assert first["v['set']"] == "1, 3"
    assert first["v['slots'].value"] == "7"
    assert str(tmp_path) in first["v['map']"]  # by its name: it may be a whole data set
    assert first == dict(fingerprints(value, "v"))
    generator.random()
    changed = dict(fingerprints(value, "v"))
    assert {name for name in first if first[name] != changed[name]} == {"v['generator']"}
