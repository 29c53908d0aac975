"""Weights from elsewhere: every container, wrapper names taken off, no code run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from overt.errors import CheckpointError
from overt.nn.pretrained import read_weights

WEIGHTS = {"a.weight": torch.arange(3.0), "b": torch.ones(2)}


@pytest.mark.parametrize("inside", [(), ("state_dict",), ("model",), ("state_dict", "model")])
def test_containers(inside: tuple[str, ...], tmp_path: Path) -> None:
    content: object = {f"module.{name}": value for name, value in WEIGHTS.items()}
    for name in inside:
        content = {name: content, "epoch": 3}
    torch.save(content, tmp_path / "file.pth")
    found = read_weights(tmp_path / "file.pth", "model.x")
    assert found.keys() == WEIGHTS.keys()
    assert torch.equal(found["a.weight"], WEIGHTS["a.weight"])


def test_folders_and_safetensors(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    assert read_weights(tmp_path, "model.x").keys() == WEIGHTS.keys()
    save_file({"b": torch.zeros(1)}, tmp_path / "ema.safetensors")
    assert read_weights(tmp_path, "model.x").keys() == {"b"}  # the average, where there is one


def test_only_whole_parts_of_a_name_are_wrappers(tmp_path: Path) -> None:
    torch.save({"module.submodule.weight": torch.ones(1)}, tmp_path / "file.pth")
    assert read_weights(tmp_path / "file.pth", "model.x").keys() == {"submodule.weight"}
    torch.save({"module.a": torch.ones(1), "a": torch.zeros(1)}, tmp_path / "two.pth")
    with pytest.raises(CheckpointError, match=r"model\.x=.*two\.pth: the keys .* both become a "):
        read_weights(tmp_path / "two.pth", "model.x")


def test_of_several_containers_the_published_one_is_read(tmp_path: Path) -> None:
    one, other = {"a": torch.ones(1)}, {"b": torch.ones(1)}
    torch.save({"model": other, "state_dict": one}, tmp_path / "file.pth")
    assert read_weights(tmp_path / "file.pth", "model.x").keys() == {"a"}
    torch.save({"teacher": other, "epoch": 3}, tmp_path / "file.pth")
    assert read_weights(tmp_path / "file.pth", "model.x").keys() == {"b"}


def test_what_cannot_be_read_is_explained(tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    (sharded / "shards.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.x=.*sharded.*`overt ckpt export .*sharded "):
        read_weights(sharded, "model.x")
    with pytest.raises(CheckpointError, match=r"model\.x=.*no such checkpoint"):
        read_weights(tmp_path / "none.pth", "model.x")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(CheckpointError, match="no tensors"):
        read_weights(tmp_path / "empty.pth", "model.x")
    torch.save(Path("x").touch, tmp_path / "code.pth")
    with pytest.raises(CheckpointError, match=r"model\.x=.*code\.pth.*Nothing of it was run"):
        read_weights(tmp_path / "code.pth", "model.x")
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        read_weights(tmp_path / "bad.safetensors", "model.x")
