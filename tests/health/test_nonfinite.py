"""overt/health/nonfinite.py: the module that produced NaN or Inf is named."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from toy_runs import same_bits

from overt.health.nonfinite import first_nonfinite_module, idle_parameters


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
