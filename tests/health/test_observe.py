"""overt/health/observe.py: norms, histograms and FLOPs in a run's log, and no trace in the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_gan import Gan
from torch import nn
from toy_runs import read_rows, same_bits, toy_config, train_toy, weights

from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.health.observe import module_norms

EVERYTHING = (
    "logging.norms_depth=1",
    "logging.histograms_every_steps=4",
    "logging.model_flops=true",
)


def test_norms_of_modules_are_those_of_their_parameters() -> None:
    model = nn.ModuleDict(
        {"a": nn.Linear(3, 4), "b": nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))}
    )
    model["idle"] = nn.Linear(1, 1)
    hidden = model["b"](model["a"](torch.randn(5, 3)))
    hidden.square().sum().backward()
    for depth, names in ((1, ["a", "b"]), (2, ["a.weight", "a.bias", "b.0", "b.1"])):
        found, norms = module_norms(model, depth)
        assert found == names  # the idle one has no gradient
        for place, name in enumerate(names):
            own = [one for key, one in model.named_parameters() if f"{key}.".startswith(f"{name}.")]
            for row, values in enumerate(([one.grad for one in own], own)):
                flat = torch.cat([value.detach().flatten() for value in values])
                torch.testing.assert_close(norms[row, place], flat.norm().double())


def test_a_model_without_gradients_has_no_norms() -> None:
    names, norms = module_norms(nn.Linear(2, 2), 1)
    assert names == []
    assert norms.shape == (2, 0)


def sharded_norms(folder: Path) -> tuple[list[str], list[Any]]:
    """One layer in shares, the other whole on each process: each must count once."""
    from torch.distributed.fsdp import fully_shard

    from overt.distributed import init_distributed

    init_distributed("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    fully_shard(model[0])
    model(torch.ones(2, 4)).square().sum().backward()
    names, norms = module_norms(model, 1)
    return names, norms.tolist()


def test_sharded_norms_are_those_of_the_whole(tmp_path: Path, run_processes: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    model(torch.ones(2, 4)).square().sum().backward()
    names, norms = module_norms(model, 1)
    for found, values in run_processes(sharded_norms, 2, tmp_path):
        assert found == names
        torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), norms)


def test_a_run_that_is_observed_is_the_same_run(tmp_path: Path) -> None:
    train_toy(tmp_path, "exp_name=plain", "model.dropout=0.5")
    train_toy(tmp_path, "exp_name=observed", "model.dropout=0.5", *EVERYTHING)
    assert same_bits(weights(tmp_path / "plain", 12), weights(tmp_path / "observed", 12))
    lines = [row for row in read_rows(tmp_path / "observed") if "train/loss" in row]
    for row in lines:
        parts = [row["gradient_norm/first"], row["gradient_norm/last"]]
        assert row["train/grad_norm"] == pytest.approx(sum(one**2 for one in parts) ** 0.5)
        assert row["weight_norm/last"] > 0
        assert row["system/memory_gb"] > 0
    assert "train/tflops_per_second" not in lines[0]  # the first steps are no measure
    flops = {
        round(row["train/tflops_per_second"] * row["train/seconds_per_step"] * 1e12)
        for row in lines[3:]
    }
    # Two samples through two layers of 4 x 8; the first layer's input needs no gradient.
    assert flops == {2 * 2 * 4 * 8 * (2 + 2 + 1)}
    spread = [
        row["step"] for row in read_rows(tmp_path / "observed") if "gradients/last.bias/std" in row
    ]
    assert spread == [4, 8, 12]


class TwiceCritical(Gan):
    """The critic is updated twice in a step, then the generator."""

    def custom_step(self, trainer: Any, micro_batches: list[Any], counts: Any) -> Any:
        self.norms: list[float] = []
        for turn in ("critic", "critic", "generator"):
            own = [replace(one, batch=replace(one.batch, turn=turn)) for one in micro_batches]
            outputs = trainer.add_gradients(own, counts, only=f"{turn}.")
            norm, applied = trainer.update(only=f"{turn}.")
            self.norms.append(float(norm))
        return outputs, norm, applied


def test_all_updates_of_a_step_are_observed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the last network had norms, and every histogram came with a warning."""
    config = toy_config(tmp_path, "training.num_steps=4", "exp_name=gan", *EVERYTHING[:2])
    recipe = TwiceCritical(config.settings)
    Trainer(config, recipe, init_distributed("cpu")).train()
    rows = read_rows(tmp_path / "gan")
    (line,) = [row for row in rows if row["step"] == 4 and "train/loss" in row]
    expected = {"critic": recipe.norms[0], "generator": recipe.norms[2]}
    assert {name: line[f"gradient_norm/{name}"] for name in expected} == pytest.approx(expected)
    assert line["weight_norm/critic"] > 0
    for name in ("gradients/critic.0.bias", "gradients/generator.0.bias", "weights/critic.0.bias"):
        assert len([row for row in rows if f"{name}/std" in row]) == 1
    assert "logged twice" not in caplog.text


def test_a_run_that_is_not_observed_says_nothing(tmp_path: Path) -> None:
    train_toy(tmp_path, "training.num_steps=4", "logging.system_metrics=false")
    groups = {name.partition("/")[0] for row in read_rows(tmp_path / "toy") for name in row}
    assert groups == {"step", "time", "train", "evaluation"}
