"""overt/tools/proof/compare.py: one bit that differs is found and named; NaN equals itself."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_runs import train_toy

from overt.tools.proof.compare import (
    compare_checkpoints,
    largest_relative,
    loss_difference,
    read_losses,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    train_toy(folder, "training.num_steps=2", "training.ema_momentum=0.9")
    return folder / "toy/checkpoints/step_00000002"


def changed(
    checkpoint: Path,
    folder: Path,
    change: Callable[[dict[str, Tensor]], object],
    part: str = "model",
) -> Path:
    """A copy of a checkpoint with one of its files changed."""
    copy = folder / "copy"
    shutil.copytree(checkpoint, copy)
    file = copy / f"{part}.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return copy


def test_a_copy_is_the_same_and_everything_is_counted(checkpoint: Path, tmp_path: Path) -> None:
    same = changed(checkpoint, tmp_path, lambda tensors: None)
    compared = compare_checkpoints(checkpoint, same)
    assert compared.difference is None
    assert compared.tensors["model.safetensors"] == compared.tensors["ema.safetensors"] == 6
    assert compared.tensors.keys() >= {"optimizer.safetensors", "rng.safetensors"}


def test_the_last_bit_of_one_number_is_found(checkpoint: Path, tmp_path: Path) -> None:
    def flip(tensors: dict[str, Tensor]) -> None:
        tensors["last.bias"].view(torch.int32)[2] ^= 1

    compared = compare_checkpoints(checkpoint, changed(checkpoint, tmp_path, flip))
    assert compared.difference is not None
    assert compared.difference.startswith(
        "model.safetensors: last.bias: 1 of 4 numbers differ, the first at flat position 2: "
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("last.bias"), "last.bias: only one of the two has it"),
        (lambda t: t.update({"last.bias": t["last.bias"].double()}), "float32 of shape (4,) and "),
        (lambda t: t.update({"last.bias": t["last.bias"][:3].clone()}), "shape (3,)"),
        (lambda t: t["last.bias"].zero_().neg_(), "last.bias: 4 of 4 numbers differ"),
    ],
    ids=["missing", "type", "shape", "sign of zero"],
)
def test_other_differences_are_named(
    change: Callable[[dict[str, Tensor]], object], said: str, checkpoint: Path, tmp_path: Path
) -> None:
    one = changed(checkpoint, tmp_path, lambda t: t["last.bias"].zero_())
    other = changed(checkpoint, tmp_path / "other", change)
    compared = compare_checkpoints(one, other)
    assert compared.difference is not None
    assert said in compared.difference


def test_nan_is_equal_to_itself(checkpoint: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["last.bias"][0] = math.nan

    one, other = (changed(checkpoint, tmp_path / name, spoil) for name in ("one", "other"))
    assert compare_checkpoints(one, other).difference is None


def test_a_missing_file_and_another_position_are_found(checkpoint: Path, tmp_path: Path) -> None:
    copy = changed(checkpoint, tmp_path, lambda tensors: None)
    state = json.loads((copy / "state.json").read_text())
    state["state"]["world_size"] = 8  # says where it ran, not what it computed
    (copy / "state.json").write_text(json.dumps(state))
    assert compare_checkpoints(checkpoint, copy).difference is None
    state["state"]["skipped"] = 3
    (copy / "state.json").write_text(json.dumps(state))
    assert compare_checkpoints(checkpoint, copy).difference == "state.json: skipped: 0 and 3"
    (copy / "ema.safetensors").unlink()
    difference = compare_checkpoints(checkpoint, copy).difference
    assert difference == f"{copy} has no ema.safetensors"


# --- losses ---------------------------------------------------------------------------------------


def test_losses_are_read_by_step(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "train/loss": 0.5},
        {"step": 1, "evaluation/error": 2.0},
        {"step": 2, "train/loss": "nan"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    losses = read_losses(tmp_path)
    assert losses[1] == 0.5
    assert math.isnan(losses[2])


def test_the_first_loss_that_differs_is_named() -> None:
    one = {1: 0.5, 2: math.nan, 3: 0.25}
    assert loss_difference(one, dict(one)) is None
    assert loss_difference(one, one | {3: 0.25000001}) == (
        "the loss of step 3 is 0.25 and 0.25000001"
    )
    assert loss_difference(one, {1: 0.5, 2: math.nan}) == "the loss of step 3 is 0.25 and None"
    assert loss_difference(one, one | {2: 1.0}) == "the loss of step 2 is nan and 1.0"


def test_the_largest_relative_difference_has_its_step() -> None:
    found = largest_relative({1: 1.0, 2: 4.0}, {1: 1.1, 2: 4.2})
    assert found == (pytest.approx(0.1), 1)
    assert largest_relative({}, {}) == (0.0, 0)
