"""A checkpoint whose checksums are right and whose content is not: refused in words, by resume."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_runs import make_trainer, train_toy

from overt.errors import CheckpointError, ConfigError
from tests.checkpoint.forged import forge_state, forge_tensors, put, sign

SETTINGS = ["training.num_steps=4", "checkpoint.every_steps=2", "training.precision=fp32"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_toy(folder, *SETTINGS)
    shutil.rmtree(folder / "toy/checkpoints/step_00000004")
    return folder / "toy"


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """The checkpoint of step 2, the only one of a run."""
    shutil.copytree(trained, tmp_path / "toy", symlinks=True)
    return tmp_path / "toy/checkpoints/step_00000002"


def resume(folder: Path) -> Any:
    return make_trainer(folder.parents[2], *SETTINGS)


def first(tensors: dict[str, Tensor], end: str) -> str:
    return next(name for name in tensors if name.endswith(end))


def refuse(folder: Path, words: str) -> None:
    with pytest.raises((CheckpointError, ConfigError), match=words):
        resume(folder)


def test_the_checkpoint_itself_is_good(folder: Path) -> None:
    sign(folder)
    resume(folder).close()


@pytest.mark.parametrize(
    ("file", "end", "value", "words"),
    [
        ("optimizer", "/exp_avg", torch.zeros(1), "expected shape"),
        ("optimizer", "/exp_avg_sq", torch.zeros(3, 3, 3), "expected shape"),
        ("optimizer", "/exp_avg", None, "expected shape .* and torch.float32"),  # as float64
        ("optimizer", "/step", torch.zeros(7), "expected one torch.float32"),
        ("model", "first.weight", torch.zeros(2, 2), "in the file"),
        ("model", "first.weight", None, "of another type"),
        ("rng", "/torch", torch.zeros(8, dtype=torch.uint8), "random state 'torch'"),
        ("rng", "/python", torch.zeros(625, dtype=torch.float64), "random state 'python'"),
        ("rng", "/numpy", torch.full((626,), -1), "random state of rank 0|numpy"),
    ],
)
def test_a_tensor_of_another_shape_or_type(
    folder: Path, file: str, end: str, value: Tensor | None, words: str
) -> None:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        name = first(tensors, end)
        return tensors | {name: tensors[name].double() if value is None else value}

    forge_tensors(folder, f"{file}.safetensors", change)
    refuse(folder, words)


@pytest.mark.parametrize("file", ["optimizer", "model", "rng"])
def test_a_tensor_of_another_name(folder: Path, file: str) -> None:
    forge_tensors(folder, f"{file}.safetensors", lambda held: {"x/y": torch.zeros(2)} | held)
    if file == "rng":  # a rank that is not here
        resume(folder).close()
    else:
        refuse(folder, "does not belong to any parameter|unexpected")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state.step", -5), ("state.step", 10**9), ("state.step", "2"), ("state.step", True),
        ("state.position", None), ("state.position.offset", -3), ("state.position.epoch", 0.5),
        ("state.position.more", 1), ("state.skipped", 99), ("state.finished", 3),
        ("state.interval", []), ("state.interval.sums", {"a": "b"}), ("state.spikes", ["x"]),
        ("state.patience", {"best": []}), ("state.patience", {"best": "x", "waited": 1}),
        ("state.wandb_run_id", {}), ("state.samples", None), ("state", []), ("metrics", []),
        ("metrics", {"error": []}), ("best_metric", "best"), ("step", 10**400), ("epoch", {}),
        ("optimizer", None), ("optimizer.groups", 3), ("optimizer.entries", {"x": {}}),
        ("optimizer.groups", [{"parameters": [1]}]), ("optimizer", {"class": "AdamW"}),
        ("state.recipe", [1]),
    ],
)  # fmt: skip
def test_a_state_of_anything(folder: Path, key: str, value: Any) -> None:
    forge_state(folder, lambda described: put(described, key, value))
    refuse(folder, ".")


@pytest.mark.parametrize(("key", "value"), [("lr", "x"), ("betas", [0.9]), ("eps", 1e999)])
def test_a_hyper_parameter_of_anything(folder: Path, key: str, value: Any) -> None:
    forge_state(folder, lambda described: put(described["optimizer"]["groups"][0], key, value))
    refuse(folder, f"{key}=.* of the saved optimizer")


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "a: [", "\0", "a: &a [*a]", "x: 1", "${a}", "[" * 5000,
     "a: &a [x,x,x,x]\n" + "".join(
         f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n"
         for old, new in zip("abcdefgh", "bcdefghi", strict=True))],
)  # fmt: skip
def test_a_configuration_of_anything(folder: Path, text: str) -> None:
    (folder / "config.yaml").write_text(text)
    sign(folder)
    refuse(folder, ".")


def test_a_configuration_that_is_not_text(folder: Path) -> None:
    (folder / "config.yaml").write_bytes(b"\xff\xfe\x00")
    sign(folder)
    refuse(folder, "not text in UTF-8")
