"""Optimizer state by parameter name, through saves and loads."""

import logging

import pytest
import torch
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.optimizer_state import CONFIGURED, describe, remember_configured, restore
from overt.errors import CheckpointError
from tests.checkpoint.forged import forge_tensors
from tests.checkpoint.small_net import Net, adamw, same_entries, train


def test_optimizer_state_follows_names_not_order(tmp_path):
    torch.manual_seed(0)
    model = Net()
    optimizer = adamw(model)
    train(model, optimizer)
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)

    other = Net(order=("third", "first", "second"))
    for parameter in other.second.parameters():
        parameter.requires_grad_(False)
    groups = [
        {"params": list(other.third.parameters()), "lr": 5.0},
        {"params": list(other.first.parameters()), "lr": 6.0},
    ]
    regrouped = torch.optim.AdamW(groups, betas=(0.1, 0.2))
    CheckpointManager(tmp_path).load_checkpoint(None, other, regrouped)
    assert [group["lr"] for group in regrouped.param_groups] == [0.01, 0.1]
    assert regrouped.param_groups[1]["weight_decay"] == 0.0
    assert regrouped.param_groups[0]["betas"] == (0.8, 0.9)
    for name in ("first", "third"):
        for ours, theirs in zip(
            getattr(model, name).parameters(), getattr(other, name).parameters(), strict=True
        ):
            assert same_entries(optimizer.state[ours], regrouped.state[theirs])


def test_unfrozen_and_regrouped_parameters(tmp_path, caplog):
    model = Net()
    frozen = torch.optim.AdamW(model.first.parameters(), lr=0.1)
    model.first(torch.ones(1, 3)).sum().backward()
    frozen.step()
    frozen.add_param_group({"params": list(model.third.parameters()), "lr": 0.7})  # no state yet
    CheckpointManager(tmp_path).save_checkpoint(0, model, frozen)
    everything = torch.optim.AdamW(model.parameters(), lr=0.3)
    train(model, everything)
    CheckpointManager(tmp_path).load_checkpoint(None, model, everything)
    assert model.first.weight in everything.state
    assert model.third.weight not in everything.state  # it had none when saved
    assert model.second.weight in everything.state  # unknown to the checkpoint: left alone
    assert everything.param_groups[0]["lr"] == 0.3
    assert "different lr" in caplog.text
    train(model, everything)


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (["first", "third"], ""),
        (["first", "second", "third"], "2 parameter(s) are new {} 0 that it no longer holds"),
        (["third", "second"], "2 parameter(s) are new {} 2 that it no longer holds"),
        (["first"], "0 parameter(s) are new {} 2 that it no longer holds"),
    ],
)
def test_parameters_that_come_and_go_are_counted(tmp_path, caplog, layers, told):
    def optimizer_of(names):
        held = [value for name in names for value in getattr(model, name).parameters()]
        return torch.optim.AdamW(held)

    model = Net()
    manager = CheckpointManager(tmp_path)
    manager.save_checkpoint(0, model, optimizer_of(["first", "third"]))
    with caplog.at_level(logging.INFO, "overt.checkpoint.optimizer_state"):
        manager.load_checkpoint(None, model, optimizer_of(layers))
    between = "to the optimizer and start without state; the saved state of"
    messages = "\n".join(record.getMessage() for record in caplog.records)
    assert told.format(between) in messages
    assert ("are new" in messages) == bool(told)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (2, 3, 4, 5)])
def test_factored_moments_of_any_shape_resume(tmp_path, shape):
    """Adafactor keeps means over the last axis and over the one before it."""

    def made():
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(shape))
        return model, torch.optim.Adafactor(model.parameters(), lr=0.1)

    model, optimizer = made()
    model.weight.grad = torch.randn(shape)
    optimizer.step()
    manager = CheckpointManager(tmp_path)
    manager.save_checkpoint(0, model, optimizer)
    other, restored = made()
    manager.load_checkpoint(None, other, restored)
    assert same_entries(optimizer.state[model.weight], restored.state[other.weight])


def test_state_of_another_precision_is_not_rounded(tmp_path):
    """torch's own load_state_dict would cast float32 moments to the parameter's bfloat16."""
    model = nn.Linear(2, 2).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    moments = torch.tensor([[1.0 + 2**-20, 2.0], [3.0, 4.0]])
    optimizer.state[model.weight] = {"momentum_buffer": moments, "count": 3, "note": None}
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)
    optimizer.state.clear()
    CheckpointManager(tmp_path).load_checkpoint(None, model, optimizer)
    restored = optimizer.state[model.weight]
    assert torch.equal(restored["momentum_buffer"], moments)
    assert (restored["count"], restored["note"]) == (3, None)


def test_state_keeps_the_memory_order_of_its_parameter(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    moments = optimizer.state[model.weight]["exp_avg"].clone()
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)
    CheckpointManager(tmp_path).load_checkpoint(None, model, optimizer)
    restored = optimizer.state[model.weight]["exp_avg"]
    assert torch.equal(restored, moments)
    assert restored.stride() == model.weight.stride()


def test_optimizers_that_do_not_belong_are_refused(tmp_path):
    model = Net()
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointError, match=r"2 parameter\(s\) that the model does not have"):
        manager.save_checkpoint(0, model, torch.optim.SGD(nn.Linear(1, 1).parameters()))
    manager.save_checkpoint(0, model, adamw(model))
    with pytest.raises(CheckpointError, match=r"state of AdamW, but the optimizer is SGD"):
        manager.load_checkpoint(None, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(CheckpointError, match="pass the model together"):
        manager.load_checkpoint(None, None, adamw(model))


def without(tensors, name):
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: without(t, "first.weight/exp_avg"), "of first.weight lacks exp_avg;"),
        (lambda t: without(t, "first.weight/step"), "of first.weight lacks step;"),
        (
            lambda t: t | {"first.weight/step": torch.tensor(3)},
            "first.weight/step has shape .* expected one torch.float32",
        ),
    ],
)
def test_state_that_torch_cannot_use_is_refused(change, problem, tmp_path):
    """Torch would raise a KeyError or RuntimeError in the first step."""
    model = Net()
    optimizer = adamw(model)
    train(model, optimizer)
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)
    forge_tensors(tmp_path / "epoch_0000", "optimizer.safetensors", change)
    with pytest.raises(CheckpointError, match=problem):
        CheckpointManager(tmp_path).load_checkpoint(None, model, adamw(model))


def test_a_number_of_400_digits_is_no_learning_rate():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    model = nn.Module()
    model.weight = optimizer.param_groups[0]["params"][0]
    _, saved = describe(model, optimizer)
    saved["groups"][0]["lr"] = 10**400
    with pytest.raises(
        CheckpointError, match=r"lr=1000.* of the saved optimizer has another type than 0.1"
    ):
        restore(model, optimizer, {}, saved)


class Adaptive(torch.optim.SGD):
    """Changes a value of its groups while it trains, as Prodigy does."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["momentum"] *= 0.5


def configured(model, kind=torch.optim.SGD, **settings):
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    remember_configured(optimizer)
    return optimizer


def resumed(model, saved, kind=torch.optim.SGD, **settings):
    optimizer = configured(model, kind, **settings)
    restore(model, optimizer, *saved)
    return optimizer.param_groups[0]


def test_values_that_are_configured_anew_win_over_saved_ones():
    model = Net()
    optimizer = configured(model, Adaptive, momentum=0.8, weight_decay=0.01)
    train(model, optimizer, steps=1)
    saved = describe(model, optimizer)
    as_before = resumed(model, saved, Adaptive, momentum=0.8, weight_decay=0.01)
    assert (as_before["momentum"], as_before["weight_decay"]) == (0.4, 0.01)
    changed = resumed(model, saved, Adaptive, momentum=0.8, weight_decay=0.5)
    assert (changed["momentum"], changed["weight_decay"]) == (0.4, 0.5)
    assert resumed(model, saved, Adaptive, momentum=0.6)["momentum"] == 0.6


def test_older_states_do_not_say_what_was_configured():
    """Torch's own classes leave their groups alone, so there the saved value was configured."""
    model = Net()
    for kind, expected in ((torch.optim.SGD, 0.6), (Adaptive, 0.8)):
        tensors, plain = describe(model, configured(model, kind, momentum=0.8))
        for group in plain["groups"]:
            del group[CONFIGURED]
        plain["groups"][0]["lr"] = 0.07  # of a schedule
        group = resumed(model, (tensors, plain), kind, momentum=0.6)
        assert (group["momentum"], group["lr"]) == (expected, 0.07)
