"""Training files of the original projects, in small files of their layouts."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import SMALL_COTRACKER3, SMALL_LBM, Small
from torch import nn

from overt.engine.training_files import restore_training_file
from overt.errors import CheckpointError

NO_SCORES = ("training.evaluate_every_steps=null", "checkpoint.metric_name=null")


def official(model: nn.Module, steps: int, kind: str) -> dict[str, Any]:
    """What the training script of CoTracker3 or of LBM saves after some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        schedule.step()
    saved: dict[str, Any] = {
        "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()
    }  # fmt: skip
    weights = model.state_dict()
    if kind == "cotracker3":
        return saved | {"model": weights, "total_steps": steps}
    prefixed = {f"module.{key}": value for key, value in weights.items()}
    scaler = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5,
              "growth_interval": 2000, "_growth_tracker": 3}  # fmt: skip
    rest = {"scaler": scaler, "epoch": 1, "args": argparse.Namespace(lr=5e-4)}
    return saved | {"model": prefixed} | rest


@pytest.mark.parametrize(("small", "kind"), [(SMALL_COTRACKER3, "cotracker3"), (SMALL_LBM, "lbm")])
def test_a_run_continues_with_moments_schedule_and_step(
    small: Small, kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    work = tmp_path / "work"
    model = small.recipe(work).build_model()
    file = tmp_path / "model_000002.pth"
    torch.save(official(model, 2, kind), file)
    words = (f"checkpoint.resume={file}", "training.num_steps=3", *NO_SCORES)
    words = (*words, f"output_dir={tmp_path / 'runs'}")
    trainer = small.trainer(work, *words)
    assert trainer.state.step == 2
    epoch, step = divmod(2, trainer.loader.steps_per_epoch)
    offset = step * trainer.parts.plan.global_batch_size
    assert tuple(trainer.state.position) == (epoch, offset)
    saved = torch.load(file, weights_only=False)["optimizer"]["state"]
    for number, (name, parameter) in enumerate(trainer.model.named_parameters()):
        assert torch.equal(parameter, dict(model.named_parameters())[name])
        if not parameter.requires_grad:  # LBM: two that nothing reads
            continue
        moments = trainer.optimizer.state[parameter]
        assert torch.equal(moments["exp_avg"], saved[number]["exp_avg"])
        assert float(moments["step"]) == 2
    trainer.train()
    assert trainer.state.step == 3
    # From here on the run's own checkpoint is the one to resume.
    for again in (words, words[1:]):  # the same command does not go back
        assert small.trainer(work, *again).state.step == 3


def test_other_files_are_refused_with_what_to_do(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    whole = official(model, 1, "cotracker3")
    cases = {
        "holds no optimizer and no scheduler": {"model": model.state_dict()},
        "how many steps": whole | {"total_steps": -1},
        "not a state dict of torch": whole | {"optimizer": {"state": 3}},
        "has 2 parameters and its model 1": whole | {"model": {"weight": model.weight.detach()}},
    }
    for number, (message, content) in enumerate(cases.items()):
        file = tmp_path / f"{number}.pth"
        torch.save(content, file)
        target = nn.Linear(2, 3, bias=message != "has 2 parameters and its model 1")
        with pytest.raises(CheckpointError, match=message):
            restore_training_file(file, target, optimizer, None)
