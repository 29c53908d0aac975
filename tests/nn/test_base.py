"""A frozen base: out of the checkpoint, named by it, and no other is accepted."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.manifest import read_manifest
from overt.checkpoint.reading import read_tensors
from overt.checkpoint.weights import load_weights
from overt.commands.ckpt import inspect
from overt.errors import CheckpointError
from overt.nn.base import stand_on
from overt.nn.lora import add_lora


def bare() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    save_file(bare().state_dict(), tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


def on(base: Path) -> nn.Sequential:
    """A new model with adapters on the base."""
    model = bare()
    add_lora(model, "^2", rank=1)
    stand_on(model, base)
    return model


def test_the_base_is_loaded_and_not_saved(base: Path) -> None:
    model = on(base)
    stored, _ = read_tensors(base)
    assert torch.equal(model[0].weight, stored["0.weight"])
    assert model.state_dict().keys() == {"base_sha256", "2.lora_a", "2.lora_b"}
    assert deepcopy(model).state_dict().keys() == model.state_dict().keys()  # an average of it


def test_a_checkpoint_says_what_it_stands_on(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = on(base)
    nn.init.ones_(model[2].lora_b)
    manager = CheckpointManager(tmp_path / "saved", metric_name=None)
    folder = manager.save_checkpoint(0, model, step=1)
    (stored,) = read_manifest(folder)["stands_on"]
    assert stored == {"module": "", "path": str(base), "sha256": model.stands_on.sha256}
    assert inspect(folder) == 0
    assert f"stands on   {base}, SHA-256" in capsys.readouterr().out
    again = on(base)
    manager.load_checkpoint(folder, again)
    inputs = torch.rand(5, 3)
    assert torch.equal(model.eval()(inputs), again.eval()(inputs))


def test_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path / "saved", metric_name=None)
    folder = manager.save_checkpoint(0, on(base), step=1)
    other = read_tensors(base)[0]
    other["0.bias"][0] += 1e-3
    save_file(other, tmp_path / "other.safetensors")
    for load in (manager.load_checkpoint, load_weights):
        with pytest.raises(CheckpointError, match=r"another base: on .* model\.base=.*other"):
            load(folder, on(tmp_path / "other.safetensors"))


def test_a_missing_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.base=.*no such checkpoint"):
        on(tmp_path / "absent.safetensors")


def test_a_base_that_does_not_fit_is_refused(base: Path, tmp_path: Path) -> None:
    stored = read_tensors(base)[0]
    save_file({**stored, "0.weight": torch.zeros(4, 9)}, tmp_path / "wide.safetensors")
    with pytest.raises(CheckpointError, match=r"0\.weight is \(4, 9\) in the file"):
        on(tmp_path / "wide.safetensors")
    del stored["0.weight"]
    save_file(stored, tmp_path / "part.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 6 frozen parameters \(0\.weight\)"):
        on(tmp_path / "part.safetensors")


def test_names_of_the_base_may_differ(base: Path, tmp_path: Path) -> None:
    stored = {f"net.{key}": value for key, value in read_tensors(base)[0].items()}
    save_file(stored, tmp_path / "named.safetensors")
    model = bare().requires_grad_(False)
    model.head = nn.Linear(2, 1)
    stand_on(model, tmp_path / "named.safetensors", rename=[(r"^net\.", "")])
    assert model.state_dict().keys() == {"base_sha256", "head.weight", "head.bias"}
