"""`check_recipe`: a sound recipe passes, and each broken promise fails its own check, in words."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_recipe.recipe import Model, Toy
from toy_runs import HERE, TOY

import overt
from overt.errors import ConfigError
from overt.testing import CHECKS, check_recipe

TRAINING = {"num_steps": 9, "batch_size": 2, "num_workers": 0, "device": "cpu"}


def configured(kind: type[Toy], **model: Any) -> Any:
    toy = overt.configure("toy", packages=[TOY], settings={"model": model})
    return overt.configure(kind, settings=toy.settings, training=TRAINING, optimizer={"lr": 0.03})


def test_a_sound_recipe_passes_every_check() -> None:
    report = check_recipe("toy", packages=[TOY], optimizer={"lr": 0.03})
    assert report == dict.fromkeys(CHECKS, "passed")


class Normed(Toy):
    """Batch statistics and dropout: compared in evaluation mode."""

    def build_model(self) -> Any:
        model = super().build_model()
        model.dropout = nn.Sequential(  # type: ignore[assignment]
            nn.BatchNorm1d(self.settings.model.width), nn.Dropout(0.2)
        )
        return model


def test_norms_and_dropout_are_no_fault() -> None:
    names = ("pure", "resume", "accumulation", "export")
    assert check_recipe(configured(Normed), only=names) == dict.fromkeys(names, "passed")


class NotANumber(Toy):
    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        return super().loss(model, batch, counts, step).scaled(float("nan"))


class Counting(Toy):
    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().loss(model, batch, counts, step)


class Helper:
    def __init__(self) -> None:
        self.network = nn.Linear(1, 1)


class Helped(Toy):
    """Its own modules stay in the training process; those of its helper do not."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.network, self.helper = nn.Linear(1, 1), Helper()


class Unpicklable(Toy):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.double = lambda value: 2 * value


class Climbing(Toy):
    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        output = super().loss(model, batch, counts, step)
        offset = 2 * output.total.detach()  # the value of the loss, with the gradient upside down
        return overt.StepOutput({"fit": offset - output.total})


class Forgetful(Toy):
    """Its own state moves with every step, and is in no checkpoint."""

    scale = 1.0

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        return super().loss(model, batch, counts, step).scaled(self.scale)

    def after_step(self, model: Any, step: int, applied: Any, carry: Any) -> None:
        super().after_step(model, step, applied, carry)
        self.scale *= 0.9


class MeanOfMeans(Toy):
    """Divides by the entries of the micro-batch, not by those of the global batch."""

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        own = {"entries": batch.mask.sum(), "samples": counts["samples"]}
        part = len(batch.inputs) / counts["samples"]
        return super().loss(model, batch, own, step).scaled(float(part))


class Unsaved(Model):
    offset: Tensor

    def __init__(self, width: int, dropout: float, idle_layer: bool) -> None:
        super().__init__(width, dropout, idle_layer)
        self.register_buffer("offset", torch.zeros(4), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.offset


class Exporting(Toy):
    """Its model depends on a buffer that no checkpoint holds."""

    def build_model(self) -> Model:
        model = self.settings.model
        return Unsaved(model.width, model.dropout, model.idle_layer)

    def after_step(self, model: Any, step: int, applied: Any, carry: Any) -> None:
        model.offset += 0.5


class ReachingIn(Toy):
    """Reads a weight beside the forward pass, where FSDP has only a shard of it."""

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        output = super().loss(model, batch, counts, step)
        bare = getattr(model, "module", model)
        share = len(batch.inputs) / counts["samples"]
        norm = (bare.last.weight @ torch.ones(8, 1)).square().sum()
        return overt.StepOutput({**output.losses, "norm": norm * share})


class Planless(Toy):
    def example_batch(self, size: int) -> Any:
        return {"inputs": torch.zeros(size)}  # not what the loss takes


@pytest.mark.parametrize(
    ("kind", "check", "message"),
    [
        (NotANumber, "step", "NaN or Inf"),
        (Counting, "pure", r"loss changed the recipe\.calls.*StepOutput\.carry"),
        (Helped, "loaders", "the recipe's collate carries a Linear to every loader process"),
        (Unpicklable, "loaders", r"collate cannot be pickled .*__getstate__"),
        (Climbing, "falls", r"the loss of one repeated batch went from .* in 20 steps"),
        (Forgetful, "resume", r"resumed at step 1, step 3 differs.*Recipe\.state_dict"),
        (MeanOfMeans, "accumulation", "one batch and two micro-batches differ: the loss of step 1"),
        (Exporting, "export", r"another losses\['fit'\].*persistent buffer"),
    ],
)
def test_a_broken_promise_fails_its_check(kind: type[Toy], check: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        check_recipe(configured(kind), only=[check])
    assert str(caught.value).startswith(f"{kind.__name__}, check {check}: ")


def test_processes_that_disagree_are_found() -> None:
    """And what only FSDP cannot do fails its own check, in the same group of processes."""
    with pytest.raises(AssertionError, match="check processes: one process and 2 processes differ"):
        check_recipe(configured(MeanOfMeans), only=["processes"])
    with pytest.raises(AssertionError, match=r"(?s)check fsdp: .*training\.strategy=fsdp ended"):
        check_recipe(configured(ReachingIn), only=["processes", "fsdp"])


def test_an_example_that_does_not_fit_fails_the_plan() -> None:
    with pytest.raises(AssertionError, match="check plan: overt plan fails with AttributeError"):
        check_recipe(configured(Planless), only=["plan"])


class Bare(Toy):
    example_batch = overt.Recipe.example_batch
    stackable = "data.random_length=true gives samples of different lengths"

    def blocks(self, model: Any) -> list[nn.Module]:
        return []


def test_what_does_not_apply_is_skipped_with_a_reason() -> None:
    report = check_recipe(
        configured(Bare),
        only=["step", "accumulation", "fsdp", "plan", "export"],
        skip={"export": "not today"},
    )
    assert report == {
        "step": "passed",
        "accumulation": f"skipped: micro-batches hold one sample: {Bare.stackable}",
        "fsdp": "skipped: the recipe has no blocks",
        "plan": "skipped: the recipe has no example_batch",
        "export": "skipped: not today",
    }


def test_a_class_that_no_other_process_can_import() -> None:
    class Local(Toy):
        pass

    report = check_recipe(configured(Local), only=["step", "loaders", "processes"])
    assert report["step"] == "passed"
    for check in ("loaders", "processes"):
        assert "other processes cannot import" in report[check]


def test_a_check_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown check resum \(did you mean resume"):
        check_recipe("toy", packages=[TOY], only=["resum"])
    with pytest.raises(ConfigError, match="unknown check everything"):
        check_recipe("toy", packages=[TOY], skip={"everything": "no time"})


def test_nothing_outside_is_touched(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(2), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    before = set(HERE.parent.iterdir())
    check_recipe(configured(Toy), only=["step", "resume"])
    assert torch.equal(torch.rand(2), expected[0])
    assert np.random.rand() == expected[1]
    assert set(HERE.parent.iterdir()) == before
    assert capsys.readouterr().out == ""
