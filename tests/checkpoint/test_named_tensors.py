"""Names without wrappers, and tied weights."""

import torch
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from tests.checkpoint.small_net import Parallel


def test_wrappers_never_reach_the_disk_and_tied_weights_are_kept_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, index):
            return self.out(self.embedding(index))

    model = Tied()
    wrapped = Parallel(torch.compile(model))
    optimizer = torch.optim.AdamW(wrapped.parameters())
    model(torch.arange(5)).sum().backward()
    optimizer.step()
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, wrapped, optimizer)
    from safetensors import safe_open

    with safe_open(path / "model.safetensors", "pt") as file:
        assert list(file.keys()) == ["embedding.weight"]
    assert "module." not in (path / "state.json").read_text()
    bare = Tied()
    manager.load_checkpoint(path, bare, torch.optim.AdamW(bare.parameters()))
    assert torch.equal(bare.out.weight, model.out.weight)
    assert bare.out.weight is bare.embedding.weight
