"""The methods of examples/methods keep the contract, in files of up to 120 lines each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from overt.config import Config, build_recipe, load
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.testing import check_recipe
from overt.tools.proof.compare import compare_checkpoints

METHODS = Path(__file__).parents[2] / "examples" / "methods"
NAMES = ("detector", "dino", "gan", "gpt", "lora", "moco", "stream")

# As small as shows the property; learning is a matter of the full size (README.md).
SMALLEST: dict[str, list[str]] = {
    "detector": ["model.width=4", "optimizer.lr=1e-2"],
    "dino": ["model.width=4", "model.classes=16", "optimizer.lr=1e-2"],
    "gan": ["model.width=16", "optimizer.lr=1e-2"],
    "gpt": ["model.width=16", "model.depth=1", "model.context=16", "optimizer.lr=1e-2"],
    "lora": ["model.width=8", "model.rank=2", "optimizer.lr=1e-1"],
    "moco": ["model.width=4", "model.features=8", "loss.queue=16", "optimizer.lr=1e-2"],
    "stream": ["model.width=4", "data.block=1", "data.buffer=8"],
}
MOVES = {"falls": "what the loss compares with is trained, too"}
OPTIONS: dict[str, dict[str, Any]] = {
    "dino": {"skip": MOVES},
    "gan": {"skip": MOVES},
    "moco": {"skip": MOVES},
}
# What the recipes do not declare: blocks to shard.
ABSENT = {"detector": {"fsdp"}, "gan": {"fsdp"}, "stream": {"fsdp"}}


def small(name: str, folder: Path) -> Config:
    words = list(SMALLEST[name])
    if name == "stream":
        words.append(f"data.root={folder / 'shards'}")
    if name == "lora":
        base = build_recipe(load(["recipe=lora_base", "model.width=8"], packages=[str(METHODS)]))
        save_file(base.build_model().state_dict(), folder / "base.safetensors")
        words.append(f"model.base={folder / 'base.safetensors'}")
    return load([f"recipe={name}", *words], packages=[str(METHODS)])


# One that streams its data and one with two networks: the contract asks the same of all.
DEFAULT = ("gan", "stream")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in DEFAULT)) for name in NAMES],
)
def test_it_keeps_the_contract(name: str, tmp_path: Path) -> None:
    report = check_recipe(small(name, tmp_path), **OPTIONS.get(name, {}))
    skipped = {check for check, outcome in report.items() if outcome != "passed"}
    expected = {*OPTIONS.get(name, {}).get("skip", {}), *ABSENT.get(name, set())}
    assert skipped == expected


@pytest.mark.parametrize("file", sorted(METHODS.glob("*.py")), ids=lambda file: file.stem)
def test_it_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 120


def train_moco(folder: Path, steps: int) -> None:
    words = [*SMALLEST["moco"], f"output_dir={folder}", "training.num_steps=4",
             "training.batch_size=2", "training.device=cpu", "training.evaluate_every_steps=null",
             "training.evaluate_at_start=false", "checkpoint.every_steps=2",
             "checkpoint.metric_name=null", "checkpoint.background=false",
             "logging.use_tensorboard=false", "logging.every_steps=1"]  # fmt: skip
    config = load(["recipe=moco", *words], packages=[str(METHODS)])
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    while trainer.state.step < steps:
        trainer.train_step()
        if trainer.is_due(2):
            trainer.save()
    trainer.close()
    del trainer  # before the process group goes


@pytest.mark.long
def test_the_queue_of_moco_resumes_bit_for_bit_on_three_processes(
    run_processes: Callable[..., Any], tmp_path: Path
) -> None:
    """What `overt prove resume --processes 3` does, without its kill; README.md has all seven."""
    run_processes(train_moco, 3, tmp_path / "whole", 4)
    run_processes(train_moco, 3, tmp_path / "parts", 2)
    run_processes(train_moco, 3, tmp_path / "parts", 4)
    ends = [tmp_path / name / "moco/checkpoints/step_00000004" for name in ("whole", "parts")]
    assert compare_checkpoints(*ends).difference is None
