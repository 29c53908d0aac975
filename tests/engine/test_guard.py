"""overt/engine/guard.py: a bad step leaves no trace in the weights, and its maker is named."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_runs import same_bits

from overt.distributed import World
from overt.engine.guard import (
    FiniteGuard,
    Interval,
    first_nonfinite_module,
    idle_parameters,
    poison_if_not_finite,
)
from overt.engine.loader import Group
from overt.recipe import StepOutput

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = dict(model.state_dict())
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"{number}.{key}": torch.as_tensor(value) for key, value in moments.items()}
    return copy.deepcopy(tensors)


OPTIMIZERS: list[Any] = [
    pytest.param(torch.optim.AdamW, {"fused": True}, id="fused"),
    pytest.param(torch.optim.AdamW, {"foreach": True}, id="foreach"),
    pytest.param(torch.optim.SGD, {"momentum": 0.9}, id="momentum"),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("kind", "arguments"), OPTIMIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_touches_neither_weights_nor_momenta(
    device: str, kind: Any, arguments: dict[str, Any], bad: float
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1, **arguments)
    guard = FiniteGuard(torch.device(device))
    moved = []
    for factor in (1.0, bad, 1.0):
        before = state_of(model, optimizer)
        (model(torch.ones(1, 3, device=device)).sum() * factor).backward()
        norm = nn.utils.get_total_norm([value.grad for value in model.parameters()])
        applied = guard.protect(optimizer, norm)
        optimizer.step()
        optimizer.zero_grad()
        moved.append(not same_bits(before, state_of(model, optimizer)))
        assert bool(applied) == moved[-1]
    assert moved == [True, False, True]


def test_poison_reaches_a_gradient_that_would_have_been_finite() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = weight.sum() + float("nan")  # NaN, and yet its gradient is 1
    poison_if_not_finite(loss).backward()
    assert weight.grad is not None
    assert weight.grad.isnan().all()
    weight.grad = None
    fine = poison_if_not_finite(weight.sum())
    fine.backward()
    assert torch.equal(weight.grad, torch.ones(2))
    assert fine == 2.0


def test_a_verdict_is_taken_once() -> None:
    guard = FiniteGuard(CPU)
    assert guard.take() is None
    outputs = [StepOutput({"fit": torch.tensor(3.0)}), StepOutput({"fit": torch.tensor(4.0)})]
    guard.remember(4, Group([], 0, 0.0), {}, torch.tensor(0.0), outputs)
    verdict = guard.take()
    assert verdict is not None
    assert (verdict.step, verdict.was_applied(), float(verdict.own_loss)) == (4, False, 7.0)
    assert guard.take() is None


def output(fit: float, size: float) -> StepOutput:
    return StepOutput(
        {"fit": torch.tensor(fit), "reg": torch.tensor(1.0)}, {"s": torch.tensor(size)}
    )


def test_an_interval_adds_micro_batches_and_leaves_out_skipped_steps() -> None:
    interval = Interval(CPU)
    yes, no = torch.tensor(1.0), torch.tensor(0.0)
    interval.add([output(2.0, 5.0), output(3.0, 6.0)], yes, torch.tensor(0.5))
    interval.add([output(float("nan"), 1.0)], no, torch.tensor(float("nan")))
    interval.add([output(1.0, 1.0)], yes, torch.tensor(1.5))
    sums, steps, losses, said = interval.totals([3.0, 4.0])
    assert steps == 2
    assert sums == {"loss": 9.0, "fit": 6.0, "reg": 3.0, "s": 12.0, "grad_norm": 2.0}
    assert losses == pytest.approx([7.0, float("nan"), 2.0], nan_ok=True)
    assert said == [[3.0, 4.0]]
    other = Interval(CPU)
    other.restore(sums, steps, losses[:1], ALONE)
    assert other.totals() == (sums, steps, losses[:1], [[]])
    interval.reset()
    assert interval.totals() == (dict.fromkeys(sums, 0.0), 0.0, [], [[]])


def test_a_long_interval_is_read_in_parts_with_the_same_sums() -> None:
    whole, parts = Interval(CPU), Interval(CPU)
    parts.LONGEST = 3  # type: ignore[misc]
    for step in range(8):
        for interval in (whole, parts):
            interval.add([output(0.1 * step, 1 / 3)], torch.ones(()), torch.tensor(0.7))
    assert len(parts.rows) == 2
    assert whole.totals() == parts.totals()


def test_only_the_main_process_carries_restored_totals() -> None:
    interval = Interval(CPU)
    interval.restore({"loss": 3.0}, 2.0, [1.0, 2.0], World(1, 2, 1, CPU))
    assert interval.totals() == ({"loss": 0.0}, 2.0, [0.0, 0.0], [[]])


def test_an_interval_of_a_version_that_measured_less_begins_anew() -> None:
    interval = Interval(CPU)
    interval.restore({"loss": 3.0, "grad_norm": 1.0}, 2.0, [1.0, 2.0], ALONE)
    interval.add([output(2.0, 5.0)], torch.ones(()), torch.tensor(0.5))
    sums, steps, losses, _ = interval.totals()
    assert (steps, losses) == (1, [pytest.approx(sums["loss"])])
    assert sums["grad_norm"] == 0.5
    with pytest.raises(ValueError, match="before they were"):
        interval.add([StepOutput({"fit": torch.ones(())})], torch.ones(()), torch.ones(()))


def test_an_interval_refuses_numbers_that_change_their_names() -> None:
    interval = Interval(CPU)
    one = torch.tensor(1.0)
    interval.add([output(1.0, 1.0)], one, one)
    with pytest.raises(ValueError, match="before they were"):
        interval.add([StepOutput({"other": one})], one, one)


def test_idle_parameters_are_named_and_frozen_ones_are_not() -> None:
    model = nn.ModuleDict(
        {"used": nn.Linear(1, 1), "idle": nn.Linear(1, 1), "off": nn.Linear(1, 1)}
    )
    model["off"].requires_grad_(False)
    model["used"](torch.ones(1)).sum().backward()
    message = idle_parameters(model)
    assert message is not None
    assert "2 parameter(s)" in message
    assert "idle.weight, idle.bias" in message
    model["idle"](torch.ones(1)).sum().backward()
    assert idle_parameters(model) is None


# --- naming the module ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Out:
    value: Tensor


class DividesByZero(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / (inputs - inputs)


class RootOfZero(nn.Module):
    """Finite forwards, but the slope of the root at zero is not."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs * 0.0).sqrt()


class RootOfParameter(nn.Module):
    """Only its own parameter gets the bad gradient: the input needs none."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, *, inputs: Tensor) -> Out:
        return Out(inputs * self.scale.sqrt())


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.last = RootOfParameter(), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(self.scaled(inputs=inputs).value)
        return result


class BetweenModules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(inputs) / 0.0)
        return result


class RootBetweenModules(BetweenModules):
    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last((self.first(inputs) * 0.0).sqrt())
        return result


def chain(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(*middle), nn.ReLU(), nn.Linear(3, 3))


IN_PLACE = nn.ReLU(inplace=True)  # torch's own backward hooks of modules would forbid it


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (chain(nn.Identity(), DividesByZero()), "1.1 (DividesByZero, forward)"),
        (chain(IN_PLACE, RootOfZero()), "1.1 (RootOfZero, backward)"),
        (chain(IN_PLACE, nn.Linear(3, 3)), None),
        (Named(), "scaled (RootOfParameter, backward)"),
        (BetweenModules(), "the model (BetweenModules, forward)"),
        (RootBetweenModules(), "the model (RootBetweenModules, backward)"),
    ],
)
def test_the_first_module_that_made_it_is_named(model: nn.Module, expected: str | None) -> None:
    inputs = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert first_nonfinite_module(model, lambda: model(inputs).sum()) == expected


def test_input_and_loss_are_told_from_modules() -> None:
    model = chain(nn.Identity())
    bad = torch.full((2, 3), float("nan"))
    named = first_nonfinite_module(model, lambda: model(bad).sum())
    assert named == "the input of the model (Sequential), before any module"
    named = first_nonfinite_module(model, lambda: model(torch.ones(2, 3)).sum().log() * 0 / 0)
    assert named == "the loss, after the model's last module"
    zero = torch.zeros(())
    named = first_nonfinite_module(model, lambda: (model(torch.ones(2, 3)).sum() * zero).sqrt())
    assert named == "the gradient of the loss, after the model's last module"


def test_naming_leaves_gradients_buffers_and_hooks_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), RootOfZero())
    kept = torch.full((3, 3), 7.0)
    model[0].weight.grad = kept.clone()
    before = copy.deepcopy(model.state_dict())
    inputs = torch.randn(4, 3)
    assert first_nonfinite_module(model, lambda: model(inputs).sum()) is not None
    assert torch.equal(model[0].weight.grad, kept)
    assert model[0].bias.grad is None
    assert same_bits(model.state_dict(), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
