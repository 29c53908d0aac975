"""overt/engine/guard.py: a bad step leaves no trace in the weights, and its maker is named."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_runs import same_bits

from overt.distributed import World
from overt.engine.guard import FiniteGuard, poison_if_nonfinite
from overt.engine.loader import StepBatch
from overt.engine.optimizer import Optimizers
from overt.recipe import StepOutput

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = dict(model.state_dict())
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"{number}.{key}": torch.as_tensor(value) for key, value in moments.items()}
    return copy.deepcopy(tensors)


def muon_and_adamw(parameters: Any, **arguments: Any) -> Optimizers:
    weight, bias = parameters
    return Optimizers(
        [
            torch.optim.AdamW([bias], fused=True, **arguments),
            torch.optim.Muon([weight], **arguments),
        ]
    )


OPTIMIZERS: list[Any] = [
    pytest.param(muon_and_adamw, {}, id="two"),
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
    poison_if_nonfinite(loss).backward()
    assert weight.grad is not None
    assert weight.grad.isnan().all()
    weight.grad = None
    fine = poison_if_nonfinite(weight.sum())
    fine.backward()
    assert torch.equal(weight.grad, torch.ones(2))
    assert fine == 2.0


def test_a_verdict_is_taken_once() -> None:
    guard = FiniteGuard(CPU)
    assert guard.take() is None
    outputs = [StepOutput({"fit": torch.tensor(3.0)}), StepOutput({"fit": torch.tensor(4.0)})]
    guard.remember(4, StepBatch([], 0, 0.0), {}, torch.tensor(0.0), outputs)
    verdict = guard.take()
    assert verdict is not None
    assert (verdict.step, verdict.was_applied(), float(verdict.own_loss)) == (4, False, 7.0)
    assert guard.take() is None
