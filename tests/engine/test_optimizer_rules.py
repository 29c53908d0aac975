"""overt/engine/optimizer_rules.py: which class steps which parameters, and several as one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_recipe.recipe import Toy
from toy_runs import losses_by_step, read_rows, toy_config, train_toy

from overt.config import build_recipe, differences
from overt.config.schema import OptimizerRule, OptimizerSection
from overt.distributed import init_distributed
from overt.engine.optimizer import (
    Optimizers,
    build_optimizer,
    members,
    set_learning_rate,
    set_weight_decay,
    weight_decay_schedule,
)
from overt.engine.trainer import Trainer
from overt.errors import CheckpointError, ConfigError
from overt.schedule import ConstantScheduler, HierarchicalScheduler
from overt.tools.doctor.run import checkpoint_bytes
from overt.tools.plan.engine_step import EngineStep

SGD = "torch.optim.SGD"
MUON = "torch.optim.Muon"


def section(*rules: dict[str, Any], **changes: Any) -> OptimizerSection:
    values: dict[str, Any] = vars(toy_config("unused").optimizer)  # type: ignore[arg-type]
    return OptimizerSection(**values | {"rules": [OptimizerRule(**one) for one in rules]} | changes)


class Net(nn.Module):
    """One of every kind of parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.positions = nn.Parameter(torch.zeros(3, 4))
        self.patches = nn.Conv2d(3, 4, 2)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.hidden = nn.Linear(4, 6)
        self.back = nn.Linear(6, 4)
        self.logit = nn.Linear(4, 1)
        self.head = nn.Linear(4, 5)
        self.tied = nn.Linear(4, 5, bias=False)
        self.tied.weight = self.words.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def held(optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    return {
        type(member).__name__: [
            name for group in member.param_groups for name in group["param_names"]
        ]
        for member in members(optimizer)
    }


def test_matrices_are_hidden_weights_and_nothing_else() -> None:
    optimizer = build_optimizer(section({"match": "matrices", "_target_": MUON}), Net())
    assert held(optimizer)["Muon"] == [
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "hidden.weight",
        "back.weight",
        "head.weight",
    ]
    every = [name for name, value in Net().named_parameters() if value.requires_grad]
    assert sorted(held(optimizer)["AdamW"] + held(optimizer)["Muon"]) == sorted(every)


def test_optimizer_muon_leaves_heads_to_adamw(tmp_path: Path) -> None:
    optimizer = build_optimizer(toy_config(tmp_path, "optimizer=muon").optimizer, Net())
    assert "head.weight" in held(optimizer)["AdamW"]
    assert "hidden.weight" in held(optimizer)["Muon"]


def test_optimizer_muon_knows_layers_of_heads_but_not_networks_within(tmp_path: Path) -> None:
    net = nn.ModuleDict(
        {
            "pose_heads": nn.ModuleDict({"betas": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))}),
            "depth_head": nn.ModuleDict({"decoder": nn.TransformerDecoderLayer(4, 2)}),
            "embed": nn.Linear(3, 3),
        }
    )
    optimizer = build_optimizer(toy_config(tmp_path, "optimizer=muon").optimizer, net)
    assert all(name.startswith("depth_head.decoder.") for name in held(optimizer)["Muon"])


def test_the_first_rule_that_matches_takes_a_parameter() -> None:
    rules = [
        {"match": r"^hidden\.", "_target_": SGD},
        {"match": "hidden|back", "skip": "bias$", "_target_": "torch.optim.Adagrad"},
    ]
    groups = held(build_optimizer(section(*rules), Net()))
    assert groups["SGD"] == ["hidden.weight", "hidden.bias"]
    assert groups["Adagrad"] == ["back.weight"]


def test_a_group_of_the_recipe_is_split_and_keeps_its_settings() -> None:
    net = Net()
    pairs = dict(net.named_parameters())
    groups = [
        {"params": [(name, pairs[name]) for name in ("hidden.weight", "hidden.bias")]},
        {
            "params": [(name, pairs[name]) for name in ("back.weight", "back.bias")],
            "lr_scale": 0.5,
            "level": 1,
            "weight_decay": 0.3,
        },
    ]
    rule = {"match": "weight", "_target_": SGD, "lr_scale": 4.0, "weight_decay": 0.2}
    optimizer = build_optimizer(section(rule), net, groups)
    schedule = HierarchicalScheduler([ConstantScheduler(2.0, 1, 1), ConstantScheduler(3.0, 1, 1)])
    assert set_learning_rate(optimizer, schedule, 0) == 2.0  # of the section's own class
    found = [
        (group["class"], group["param_names"], group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
    ]
    assert found == [
        ("AdamW", ["hidden.bias"], 2.0, 0.01),
        ("AdamW", ["back.bias"], 1.5, 0.3),
        ("SGD", ["hidden.weight"], 8.0, 0.2),
        ("SGD", ["back.weight"], 6.0, 0.3),
    ]


def test_a_learning_rate_of_its_own_follows_the_schedule_of_all() -> None:
    rule = {"match": "hidden", "_target_": SGD, "lr": 0.05}
    optimizer = build_optimizer(section(rule, lr=0.01), Net())
    set_learning_rate(optimizer, ConstantScheduler(0.001, 1, 1), 0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.001, 0.005])


def test_a_weight_decay_of_its_own_follows_the_schedule_in_proportion() -> None:
    schedule = {"_target_": "overt.schedule.LinearScheduler", "final_value": 0.4}
    rules = [
        {"match": r"hidden\.", "_target_": SGD, "weight_decay": 0.08},
        {"match": r"back\.", "_target_": "torch.optim.Rprop", "weight_decay": 0},
    ]
    chosen = section(
        *rules, weight_decay=0.04, weight_decay_schedule=schedule, decay_only_matrices=True
    )
    optimizer = build_optimizer(chosen, Net())
    set_weight_decay(optimizer, weight_decay_schedule(chosen, 1.0, 10), 10)
    decays = {
        name: group.get("weight_decay")
        for group in optimizer.param_groups
        for name in group["param_names"]
    }
    assert decays["head.weight"] == pytest.approx(0.4)
    assert decays["hidden.weight"] == pytest.approx(0.8)
    assert decays["head.bias"] == decays["hidden.bias"] == 0.0
    assert decays["back.weight"] is None or decays["back.weight"] == 0.0
    with pytest.raises(ConfigError, match=r"optimizer\.weight_decay must be above 0"):
        build_optimizer(section(rules[0], weight_decay=0.0, weight_decay_schedule=schedule), Net())


def test_without_a_second_class_the_optimizer_is_torchs_own() -> None:
    assert type(build_optimizer(section(), Net())) is torch.optim.AdamW
    everything = section({"match": "", "_target_": SGD})
    assert type(build_optimizer(everything, Net())) is torch.optim.SGD


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"match": "encoder", "_target_": SGD}, r"rules.0.match=encoder matches no trainable"),
        ({"match": "frozen", "_target_": SGD}, "matches no trainable parameter"),
        ({"match": "hidden", "_target_": MUON}, "2D parameters .* optimizer=muon gives"),
        ({"match": "hidden", "_target_": "torch.optim.Moun"}, "did you mean Muon"),
        (
            {"match": "hidden", "_target_": SGD, "arguments": {"momentun": 0.9}},
            r"optimizer\.rules\.0\.arguments\.momentun.*did you mean momentum",
        ),
        (
            {"match": "hidden", "_target_": "torch.optim.Rprop"},
            r"has no weight decay; set optimizer\.rules\.0\.weight_decay=0$",
        ),
    ],
)
def test_rules_that_cannot_be_are_refused(rule: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        build_optimizer(section(rule), Net())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ["optimizer.rules=[{match: a, _target_: os.system}]"],
            r"rules\.0\._target_=os\.system is",
        ),
        (["optimizer.rules=[{match: '(', _target_: torch.optim.SGD}]"], "not a regular expression"),
        (["optimizer.rules=[{_target_: torch.optim.SGD}]"], r"no value yet: optimizer\.rules"),
        (["optimizer.rules=[{match: a, _target_: b, lrr: 1}]"], "unknown key .*lrr"),
        (["optimizer=muon", "optimizer.rules.0.lr=-1"], r"rules\.0\.lr=-1.0; use a number above 0"),
        (["optimizer=muon", "optimizer.rules.0.weight_decay=-1"], "use 0 or more"),
        (
            ["optimizer=muon", "optimizer.rules.0.lr=1", "optimizer.rules.0.lr_scale=2"],
            "give one of the two",
        ),
        (["optimizer=muon", "optimizer.rules.1.lr_scale=2"], "unknown key"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    settings: list[str], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        toy_config(tmp_path, *settings)


def test_a_single_setting_of_a_rule_can_be_changed(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "optimizer=muon", "optimizer.rules.0.lr_scale=2")
    assert config.optimizer.rules[0].lr_scale == 2.0
    assert "lr_scale: 2.0" in config.text


# --- several as one -------------------------------------------------------------------------------


def trained(optimizer: torch.optim.Optimizer, net: Net) -> dict[str, Tensor]:
    for _ in range(3):
        torch.manual_seed(1)
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def test_together_they_do_what_each_does_alone() -> None:
    torch.manual_seed(0)
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    together = build_optimizer(section({"match": "matrices", "_target_": MUON}), net)
    assert isinstance(together, Optimizers)
    one = trained(together, net)
    apart = members(build_optimizer(section({"match": "matrices", "_target_": MUON}), other))
    for _ in range(3):
        torch.manual_seed(1)
        for parameter in other.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        for member in apart:
            member.step()
            member.zero_grad()
    for name, value in other.state_dict().items():
        assert torch.equal(one[name], value), name
    assert {len(state) for state in together.state.values()} == {1, 3}  # Muon's and AdamW's


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_muon_trains_the_toy_and_a_bad_step_touches_neither(precision: str, tmp_path: Path) -> None:
    settings = ["optimizer=muon", "optimizer.lr=0.01", "data.nan_sample=3"]
    config = toy_config(tmp_path, *settings, f"training.precision={precision}")
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    skipped = 0
    for _ in range(12):
        before = [value.clone() for value in every_tensor(trainer)]
        trainer.train_step()
        trainer.settle()
        after = every_tensor(trainer)
        if trainer.state.skipped > skipped:
            skipped = trainer.state.skipped
            assert before == [] or all(map(torch.equal, before, after))
        elif before:
            moved = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
            assert all(moved)
    assert skipped == 3  # once an epoch
    trainer.close()


def every_tensor(trainer: Trainer) -> list[Tensor]:
    state = trainer.optimizer.state
    moments = [value for parameter in trainer.parameters for value in state[parameter].values()]
    return [*trainer.parameters, *moments] if moments else []


def test_the_start_says_who_steps_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_toy(tmp_path, "optimizer=muon", "training.num_steps=1")
    assert "AdamW for 12, Muon for 64 parameters" in capsys.readouterr().out
    train_toy(tmp_path / "one", "training.num_steps=1")
    assert "optimizers" not in capsys.readouterr().out


def test_state_from_before_the_first_step_is_kept() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    adagrad = torch.optim.Adagrad([weight], initial_accumulator_value=0.5)
    together = Optimizers([adagrad])
    assert together.state[weight]["sum"].tolist() == [0.5, 0.5]
    assert adagrad.state[weight]["sum"].tolist() == [0.5, 0.5]


def test_other_rules_are_refused_when_a_run_resumes(tmp_path: Path) -> None:
    rule = "optimizer.rules=[{match: '%s', _target_: torch.optim.Adagrad}]"
    accepted = "checkpoint.accept_changes=[optimizer]"
    train_toy(tmp_path, rule % "first", "training.num_steps=3")
    longer = [accepted, "training.num_steps=3"]
    with pytest.raises(CheckpointError, match=r"state of Adagrad for first\.weight, but AdamW"):
        train_toy(tmp_path, rule % "last", *longer)
    with pytest.raises(CheckpointError, match=r"state of AdamW \+ Adagrad, but the optimizer is A"):
        train_toy(tmp_path, *longer)


def test_two_of_one_class_may_become_one(tmp_path: Path) -> None:
    rule = "optimizer.rules=[{match: first, _target_: torch.optim.AdamW, lr: 0.1}]"
    train_toy(tmp_path, rule, "training.num_steps=3")
    changes = ["checkpoint.accept_changes=[optimizer,training.num_steps]", "training.num_steps=5"]
    train_toy(tmp_path, *changes)
    assert losses_by_step(tmp_path / "toy").keys() == {1, 2, 3, 4, 5}


def test_a_run_from_before_there_were_rules_is_the_same_run(tmp_path: Path) -> None:
    text = toy_config(tmp_path).text
    old = text.replace("  rules: []\n", "")
    assert old != text
    assert differences(old, text, ()) == []
    assert differences(text, old, ()) == []
    assert differences(old, toy_config(tmp_path, "optimizer=muon").text, ()) != []


def test_doctor_and_plan_count_what_each_class_keeps(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "optimizer=muon")
    recipe = build_recipe(config)
    assert isinstance(recipe, Toy)
    # 116 weights; two moments of the biases, one of the matrices.
    assert checkpoint_bytes(config, recipe) == 4 * (116 + 2 * 12 + 64)
    memory = EngineStep(config, recipe, checkpointing=False).run(recipe.example_batch(2), 2)
    # Blocks of 512 bytes: one for each matrix; two and a step counter for each bias.
    assert memory.optimizer == 512 * (2 * 1 + 2 * 3)


def test_losses_are_logged_with_the_rate_of_the_sections_own_class(tmp_path: Path) -> None:
    train_toy(tmp_path, "optimizer=muon", "optimizer.rules.0.lr_scale=3", "training.num_steps=2")
    rates = [row["train/lr"] for row in read_rows(tmp_path / "toy") if "train/lr" in row]
    assert rates[0] == pytest.approx(0.01)
