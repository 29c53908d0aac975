"""overt/tools/proof/compare.py: the first difference between two runs, or none."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_runs import train_toy

from overt.errors import OvertError
from overt.tools.proof.compare import (
    compare_checkpoints,
    largest_relative,
    loss_difference,
    read_losses,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train_toy(root, "training.num_steps=2")
    return (root / "toy" / "checkpoints" / "latest").resolve()


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    shutil.copytree(checkpoint, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_is_the_same_and_every_tensor_is_counted(checkpoint: Path, copy: Path) -> None:
    result = compare_checkpoints(checkpoint, copy)
    assert result.difference is None
    assert result.tensors["model.safetensors"] == len(load_file(copy / "model.safetensors"))


def test_one_bit_is_found_with_its_position(checkpoint: Path, copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    name = sorted(tensors)[0]
    values = tensors[name].view(-1)
    values[1] = torch.nextafter(values[1], torch.tensor(math.inf))
    save_file(tensors, copy / "model.safetensors")
    difference = compare_checkpoints(checkpoint, copy).difference
    assert difference is not None
    assert f"model.safetensors: {name}: 1 of {values.numel()} numbers differ" in difference
    assert "flat position 1" in difference


def test_bits_are_compared_and_not_values(copy: Path, tmp_path: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    name = sorted(tensors)[0]
    other = tmp_path / "other"
    shutil.copytree(copy, other)
    for folder, value in ((copy, math.nan), (other, math.nan)):
        tensors[name].view(-1)[0] = value
        save_file(tensors, folder / "model.safetensors")
    assert compare_checkpoints(copy, other).difference is None  # NaN equals itself
    for folder, value in ((copy, 0.0), (other, -0.0)):
        tensors[name].view(-1)[0] = value
        save_file(tensors, folder / "model.safetensors")
    assert "numbers differ" in (compare_checkpoints(copy, other).difference or "")


def test_missing_tensors_files_and_other_shapes_are_named(checkpoint: Path, copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    name = sorted(tensors)[0]
    save_file(tensors | {name: tensors[name].double()}, copy / "model.safetensors")
    assert "float32" in (compare_checkpoints(checkpoint, copy).difference or "")
    save_file({key: tensors[key] for key in tensors if key != name}, copy / "model.safetensors")
    assert "only one of the two has it" in (compare_checkpoints(checkpoint, copy).difference or "")
    (copy / "optimizer.safetensors").unlink()
    (copy / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    assert "has no optimizer.safetensors" in (
        compare_checkpoints(checkpoint, copy).difference or ""
    )


def test_the_state_is_compared_but_for_what_no_result_depends_on(
    checkpoint: Path, copy: Path
) -> None:
    content = json.loads((copy / "state.json").read_text())
    content["state"]["wandb_run_id"] = "another"
    (copy / "state.json").write_text(json.dumps(content))
    assert compare_checkpoints(checkpoint, copy).difference is None
    content["state"]["step"] = 99
    (copy / "state.json").write_text(json.dumps(content))
    assert "state.json: step: 2 and 99" in (compare_checkpoints(checkpoint, copy).difference or "")


def test_losses_are_read_by_step_and_a_run_without_a_log_is_refused(tmp_path: Path) -> None:
    rows = ['{"step": 1, "train/loss": 0.5}', '{"step": 1, "evaluation/x": 1}',
            '{"step": 2, "train/loss": "nan"}', '{"step": 3, "tra']  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    losses = read_losses(tmp_path)
    assert losses[1] == 0.5
    assert math.isnan(losses[2])
    assert len(losses) == 2
    with pytest.raises(OvertError, match=r"has no metrics\.jsonl"):
        read_losses(tmp_path / "nowhere")


def test_two_curves_differ_at_the_first_step_that_is_not_the_same() -> None:
    curve = {1: 0.5, 2: math.nan, 3: 0.25}
    assert loss_difference(curve, dict(curve)) is None
    assert loss_difference(curve, curve | {3: 0.26}) == "the loss of step 3 is 0.25 and 0.26"
    assert "step 2" in (loss_difference(curve, {1: 0.5, 3: 0.25}) or "")
    assert largest_relative({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.5}) == (0.25, 2)
    assert largest_relative({}, {}) == (0.0, 0)
