"""overt/engine/optimizer.py: groups by name, decay of matrices only, one rate for each level."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from toy_runs import toy_config

from overt.config.schema import OptimizerSection
from overt.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    set_learning_rate,
    set_weight_decay,
    weight_decay_schedule,
)
from overt.errors import ConfigError
from overt.schedule import ConstantScheduler, HierarchicalScheduler


def section(**changes: Any) -> OptimizerSection:
    values: dict[str, Any] = vars(toy_config("unused").optimizer)  # type: ignore[arg-type]
    return OptimizerSection(**values | changes)


def model() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    layers[2].requires_grad_(False)
    return layers


def names(optimizer: torch.optim.Optimizer) -> list[list[str]]:
    return [group["param_names"] for group in optimizer.param_groups]


def test_all_that_needs_a_gradient_and_nothing_else() -> None:
    optimizer = build_optimizer(section(decay_only_matrices=False), model())
    assert names(optimizer) == [["0.weight", "0.bias", "1.weight", "1.bias"]]


def test_only_matrices_decay() -> None:
    optimizer = build_optimizer(section(decay_only_matrices=True, weight_decay=0.5), model())
    assert names(optimizer) == [["0.weight"], ["0.bias", "1.weight", "1.bias"]]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


def test_groups_of_the_recipe_keep_their_scale_and_level_when_split() -> None:
    net = model()
    pairs = list(net.named_parameters())[:4]
    groups = [
        {"params": pairs[:2], "lr_scale": 0.1},
        {"params": pairs[2:], "level": 1, "weight_decay": 0.3},
    ]
    optimizer = build_optimizer(section(decay_only_matrices=True), net, groups)
    assert names(optimizer) == [["0.weight"], ["0.bias"], ["1.weight", "1.bias"]]
    schedule = HierarchicalScheduler([ConstantScheduler(2.0, 1, 1), ConstantScheduler(3.0, 1, 1)])
    assert set_learning_rate(optimizer, schedule, 0) == pytest.approx(0.2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.2, 3.0])
    # A schedule of one value serves every level.
    set_learning_rate(optimizer, ConstantScheduler(5.0, 1, 1), 0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.5, 5.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.5}, "gives a group lr=0.5, which the schedule replaces in every step; use lr_sc"),
        (
            {"lr_scal": 0.5},
            r"gives a group lr_scal, which neither a group nor .* has \(did you mean lr_scale\?\)",
        ),
        ({"params": []}, "no parameter that needs a gradient"),
    ],
)
def test_settings_of_groups_without_effect_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    """They were ignored, and the group trained with the learning rate of all."""
    net = model()
    groups = [{"params": list(net.named_parameters())[:4]} | changes]
    with pytest.raises(ConfigError, match=message):
        build_optimizer(section(), net, groups)


def test_groups_hold_pairs_of_name_and_parameter() -> None:
    net = model()
    with pytest.raises(ConfigError, match="not pairs of name and parameter"):
        build_optimizer(section(), net, [{"params": list(net.parameters())[:4]}])
    # An iterator is read once: it was empty for the optimizer.
    optimizer = build_optimizer(section(), net, [{"params": iter([*net.named_parameters()][:4])}])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


def test_arguments_reach_the_class_and_unknown_ones_are_refused() -> None:
    optimizer = build_optimizer(section(arguments={"betas": [0.5, 0.6]}), model())
    assert list(optimizer.param_groups[0]["betas"]) == [0.5, 0.6]
    with pytest.raises(ConfigError, match=r"optimizer\.arguments\.beta: .*did you mean betas\?"):
        build_optimizer(section(arguments={"beta": 0.5}), model())


def test_another_class_and_the_way_to_it(tmp_path: Path) -> None:
    settings = ["optimizer._target_=torch.optim.SGD"]
    with pytest.raises(ConfigError, match=r"with ~optimizer\.arguments\.betas"):
        build_optimizer(toy_config(tmp_path, *settings).optimizer, model())
    left = toy_config(tmp_path, *settings).optimizer.arguments
    settings += [f"~optimizer.arguments.{name}" for name in left]
    optimizer = build_optimizer(toy_config(tmp_path, *settings).optimizer, model())
    assert isinstance(optimizer, torch.optim.SGD)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"_target_": "torch.optim.Adamm"}, "did you mean Adam?"),
        ({"_target_": "torch.optim.lr_scheduler.StepLR"}, "is not a torch.optim.Optimizer"),
        ({"arguments": {"betas": [2.0, 3.0]}}, "refuses its settings: Invalid beta"),
        ({"arguments": {"betas": "x"}}, "torch.optim.AdamW refuses its settings"),
    ],
)
def test_what_torch_would_choke_on_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_optimizer(section(**changes), model())
    assert expected in str(refused.value)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter that needs a gradient"):
        build_optimizer(section(), model().requires_grad_(False))


RPROP = {"_target_": "torch.optim.Rprop", "arguments": {}}


def test_a_class_without_weight_decay_can_be_used() -> None:
    net = model()
    optimizer = build_optimizer(section(**RPROP, weight_decay=0.0), net)
    assert isinstance(optimizer, torch.optim.Rprop)
    assert not any(group["decays"] for group in optimizer.param_groups)
    set_weight_decay(optimizer, ConstantScheduler(0.5, 1, 1), 0)
    before = net[0].weight.clone()
    net[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].weight, before)


def test_weight_decay_for_a_class_without_it_is_refused_with_what_works(tmp_path: Path) -> None:
    settings = ["optimizer._target_=torch.optim.Rprop"]
    settings += ["~optimizer.arguments.betas", "~optimizer.arguments.eps"]
    with pytest.raises(ConfigError) as refused:
        build_optimizer(toy_config(tmp_path, *settings).optimizer, model())
    assert "optimizer.weight_decay=0.01: torch.optim.Rprop has no weight decay" in str(
        refused.value
    )
    remedy = str(refused.value).rpartition("set ")[2]
    assert remedy == "optimizer.weight_decay=0"
    build_optimizer(toy_config(tmp_path, *settings, remedy).optimizer, model())


def test_weight_decay_of_the_recipes_groups_needs_a_class_that_has_it() -> None:
    net = model()
    groups = [{"params": list(net.named_parameters())[:4], "weight_decay": 0.3}]
    with pytest.raises(ConfigError, match=r"recipe gives .* 0\.weight a weight decay"):
        build_optimizer(section(**RPROP, weight_decay=0.0), net, groups)


def test_a_schedule_of_weight_decay_that_nothing_follows_is_refused() -> None:
    schedule = {"_target_": "overt.schedule.LinearScheduler", "final_value": 0.4}
    with pytest.raises(ConfigError, match=r"weight_decay_schedule=null, or a weight decay above 0"):
        build_optimizer(section(weight_decay=0.0, weight_decay_schedule=schedule), model())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("LBFGS", "computes the loss several times"), ("SparseAdam", "takes sparse gradients only")],
)
def test_a_class_that_a_training_step_cannot_serve_is_refused(name: str, reason: str) -> None:
    chosen = section(_target_=f"torch.optim.{name}", arguments={}, weight_decay=0.0)
    with pytest.raises(ConfigError, match=f"{name} {reason}"):
        build_optimizer(chosen, model())


def test_weight_decay_follows_its_schedule_where_there_is_any() -> None:
    schedule = {"_target_": "overt.schedule.LinearScheduler", "final_value": 0.4}
    chosen = section(weight_decay=0.04, decay_only_matrices=True, weight_decay_schedule=schedule)
    optimizer = build_optimizer(chosen, model())
    follow = weight_decay_schedule(chosen, epochs=2.0, steps_per_epoch=5)
    for update in (0, 5, 10, 99):
        set_weight_decay(optimizer, follow, update)
        expected = 0.04 + (0.4 - 0.04) * min(update, 10) / 10
        assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(expected)
        assert optimizer.param_groups[1]["weight_decay"] == 0.0
    assert weight_decay_schedule(section(), 2.0, 5) is None


@pytest.mark.parametrize("limit", [None, 0.5, 1e6])
def test_clipping_is_torchs_own_to_the_last_bit(limit: float | None) -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(size)) for size in (7, 300, 1)]
    idle = nn.Parameter(torch.randn(3))
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    before = [weight.grad.clone() for weight in weights]
    norm = clip_gradients([*weights, idle], limit)
    ours = [weight.grad for weight in weights]
    for weight, gradient in zip(weights, before, strict=True):
        weight.grad = gradient
    expected = clip_grad_norm_([*weights, idle], math.inf if limit is None else limit)
    assert torch.equal(norm, expected)
    for weight, one in zip(weights, ours, strict=True):
        assert torch.equal(one, weight.grad)


def test_without_a_gradient_the_norm_is_zero() -> None:
    assert clip_gradients([nn.Parameter(torch.ones(3))], 1.0) == 0
