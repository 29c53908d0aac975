"""overt/checkpoint/shards.py without a group: plain folders, shares that never come."""

from pathlib import Path

import pytest
import torch
from torch import nn

from overt.checkpoint import storage
from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.shards import read_index, read_part, restore
from overt.checkpoint.tensor_files import Bytes, TensorFile
from overt.errors import CheckpointError


class Tied(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.last.weight = self.first.weight
        self.register_buffer("count", torch.tensor(7))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Tied, torch.optim.Optimizer, Path]:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return model, optimizer, CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)


def test_a_plain_folder_reads_like_one_of_a_single_share(
    saved: tuple[Tied, torch.optim.Optimizer, Path],
) -> None:
    model, _, folder = saved
    index = read_index(folder)
    assert index["model/last.weight"].pieces == index["model/first.weight"].pieces
    part = read_part(folder, "model")
    assert part.keys() == model.state_dict().keys()
    assert all(torch.equal(part[key], value) for key, value in model.state_dict().items())
    assert index["optimizer/first.bias/exp_avg"].shape == (3,)


def test_restore_fills_what_is_given_and_refuses_another_model(
    saved: tuple[Tied, torch.optim.Optimizer, Path],
) -> None:
    from overt.checkpoint import plain_values

    model, optimizer, folder = saved
    described = plain_values.decode((folder / "state.json").read_bytes())["optimizer"]
    other = Tied()
    other.count.fill_(0)
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    restore(folder, described, other, None, fresh)
    assert other.count == 7
    assert torch.equal(other.first.weight, model.first.weight)
    moments = optimizer.state[model.last.weight], fresh.state[other.last.weight]
    assert torch.equal(moments[0]["exp_avg_sq"], moments[1]["exp_avg_sq"])
    with pytest.raises(CheckpointError, match=r"\(3, 3\) in the checkpoint, \(4, 4\) in the model"):
        restore(folder, None, Tied(4), None, None)
    with pytest.raises(CheckpointError, match="only in the model"):
        restore(folder, None, nn.Sequential(nn.Linear(1, 1)), None, None)


def test_a_share_that_does_not_come_leaves_nothing_behind(tmp_path: Path) -> None:
    content = TensorFile({"a": torch.ones(3)})
    shares = storage.Shares(("rank_00001.safetensors",), seconds=0.0)
    with pytest.raises(CheckpointError, match=r"rank_00001.safetensors.*shared file system"):
        storage.write_folder(
            tmp_path, "step_1", {"rank_00000.safetensors": content}, {}, True, shares
        )
    assert list(tmp_path.iterdir()) == []


def test_shares_and_notes_come_together(tmp_path: Path) -> None:
    content = TensorFile({"a": torch.ones(3)})
    hidden = tmp_path / storage.hidden_name("writing", "step_1")
    storage.write_share(hidden, "rank_00001.safetensors", content)
    shares = storage.Shares(("rank_00001.safetensors",), seconds=0.0)
    files = {"rank_00000.safetensors": content, "state.json": Bytes(b"{}")}
    stored = storage.write_folder(tmp_path, "step_1", files, {"serial": 1}, True, shares)
    assert str(storage.verify(stored.path)) == "good"
    assert stored.manifest["files"].keys() == {*files, "rank_00001.safetensors"}
