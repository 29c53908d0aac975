"""overt/checkpoint/shards.py without a process group, on plain folders."""

from pathlib import Path

import pytest
import torch
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.shard_index import read_index
from overt.checkpoint.shards import read_part, restore
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


def test_a_plain_folder_reads_like_one_of_a_single_rank(
    saved: tuple[Tied, torch.optim.Optimizer, Path],
) -> None:
    model, _, folder = saved
    index = read_index(folder)
    assert index["model/last.weight"].chunks == index["model/first.weight"].chunks
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
