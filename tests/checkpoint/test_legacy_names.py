"""Files under the names of older projects beside every checkpoint."""

from pathlib import Path

import torch
from torch import nn

from overt.checkpoint.manager import CheckpointManager


def test_latest_and_best_are_written_as_single_files(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, metric_name="score", mode="max", legacy_names=True)
    model = nn.Linear(2, 1)
    schedule = {"last_step": 7}  # a state itself, as H-JEPA's scripts pass it
    for epoch, score in enumerate((0.9, 0.1)):
        nn.init.constant_(model.weight, epoch)
        manager.save_checkpoint(epoch, model, scheduler=schedule, metrics={"score": score})
    manager.wait()
    for name, epoch in (("latest", 1), ("best", 0)):
        content = torch.load(tmp_path / f"checkpoint_{name}.pth")
        assert content["epoch"] == epoch
        assert content["model_state_dict"]["weight"].tolist() == [[epoch, epoch]]
    assert content["metrics"] == {"score": 0.9}


def test_tied_weights_have_all_their_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    manager = CheckpointManager(tmp_path, metric_name=None, legacy_names=True)
    manager.save_checkpoint(0, model)
    manager.wait()
    written = torch.load(tmp_path / "checkpoint_latest.pth")["model_state_dict"]
    assert written.keys() == model.state_dict().keys()
    assert torch.equal(written["1.weight"], model[0].weight)


def test_the_state_of_a_schedule_comes_back(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, metric_name=None)
    model = nn.Linear(2, 1)
    manager.save_checkpoint(0, model, scheduler={"last_step": 7})
    assert not list(tmp_path.glob("*.pth"))
    metadata = manager.load_checkpoint(None, model)
    assert metadata["scheduler"] == {"last_step": 7}
