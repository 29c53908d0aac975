"""overt/engine/guard.py: a bad step leaves no trace in the weights, and its maker is named."""

import copy
import math
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
from overt.run.events import SkippedStep

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


def guard_on(device: str) -> FiniteGuard:
    """`as on a GPU` decides with the operations for a GPU, on tensors of the CPU."""
    guard = FiniteGuard(CPU if device == "as on a GPU" else torch.device(device))
    if device == "as on a GPU":
        guard.device = torch.device("cuda")
    return guard


@pytest.mark.parametrize(
    "device", ["cpu", "as on a GPU", pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize(("kind", "arguments"), OPTIMIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_touches_neither_weights_nor_momenta(
    device: str, kind: Any, arguments: dict[str, Any], bad: float
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    guard = guard_on(device)
    device = "cuda" if device == "cuda" else "cpu"
    model = nn.Linear(3, 2).to(device)
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1, **arguments)
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


@pytest.mark.parametrize("device", ["cpu", "as on a GPU"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_spike_is_skipped_and_known_as_one(device: str, fused: bool) -> None:
    """A step that is not finite is no spike, nor is the step after one."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    guard = guard_on(device)
    found = []
    for norm, allowed in ((1.0, True), (1.0, False), (1.0, None), (1.0, False), (math.nan, False)):
        before = weight.detach().clone()
        weight.grad = torch.full((2,), norm)
        limit = None if allowed is None else torch.tensor(allowed)
        applied = guard.protect(optimizer, torch.tensor(norm), limit)
        optimizer.step()
        assert bool(applied) != torch.equal(weight, before)
        found.append((bool(applied), bool(guard.spiked)))
    assert found == [(True, False), (False, True), (True, False), (False, True), (False, False)]


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
    assert verdict.event("head", True, 9.0) == SkippedStep(4, 7.0, [], "head", True, None)
    verdict.spiked = torch.tensor(1.0)
    assert verdict.event(None, False, 9.0) == SkippedStep(4, 7.0, [], None, False, 9.0)
    assert guard.take() is None
