"""Restoring a run: what has to be there, and what is refused."""

import logging
import math

import pytest
import torch
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.restoring import STATE_KEYS
from overt.errors import CheckpointError
from tests.checkpoint.forged import forge_state
from tests.checkpoint.small_net import Net, adamw, names


def test_without_optional_parts(tmp_path):
    model = Net()
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, model)
    assert path.name == "epoch_0000"
    assert names(path) == ["manifest.json", "model.safetensors", "state.json"]
    loaded = manager.load_checkpoint(path)
    assert loaded["tensors"] == {}
    assert loaded["config_yaml"] is None
    assert loaded["step"] is None
    with pytest.raises(CheckpointError, match=r"no optimizer part.*init_from"):
        manager.load_checkpoint(path, model, adamw(model))
    with pytest.raises(CheckpointError, match=r"no ema part"):
        manager.load_checkpoint(path, ema=model)


def test_resume_needs_the_same_model(tmp_path):
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, Net())
    bigger = Net()
    bigger.register_buffer("fresh", torch.zeros(1))
    with pytest.raises(CheckpointError, match="missing: 1"):
        manager.load_checkpoint(path, bigger)
    model = nn.Module()
    model.register_buffer("weight", torch.zeros(1))
    model.register_buffer("table", torch.zeros(3))
    path = manager.save_checkpoint(1, model)
    model.table = torch.zeros(4)
    with pytest.raises(CheckpointError, match=r"table: \(3,\) in the file, \(4,\) in the model"):
        manager.load_checkpoint(path, model)


def test_resume_takes_no_computed_table_of_another_size(tmp_path):
    class Computing(nn.Module):
        computed_tensors = ("table",)

        def __init__(self, rows):
            super().__init__()
            self.register_buffer("weight", torch.zeros(1))
            self.register_buffer("table", torch.arange(rows))

    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(1, Computing(3))
    with pytest.raises(CheckpointError, match=r"skipped: 1 \(table\)\nA resumed run needs"):
        manager.load_checkpoint(path, Computing(4))


def test_loading_what_is_not_there_or_foreign(tmp_path):
    manager = CheckpointManager(tmp_path)
    assert manager.get_latest_checkpoint() is None
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        manager.load_checkpoint()
    torch.save(Net().state_dict(), tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match=r"not a checkpoint folder.*init_from"):
        manager.load_checkpoint(tmp_path / "foreign.pt", Net())


def test_a_named_checkpoint_that_is_broken_is_refused_and_left(tmp_path):
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, Net())
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state.json: 2 bytes"):
        manager.load_checkpoint(path)
    assert path.exists()


def test_a_scaler_without_saved_state_starts_from_scratch_with_a_warning(tmp_path, caplog):
    manager = CheckpointManager(tmp_path)
    manager.save_checkpoint(0, Net(), scaler=torch.amp.GradScaler("cpu", enabled=False))
    with caplog.at_level(logging.WARNING):
        manager.load_checkpoint(None, None, None, torch.amp.GradScaler("cpu", enabled=False))
        assert caplog.text == ""
        manager.load_checkpoint(None, None, None, torch.amp.GradScaler("cpu"))
    assert "starts from scratch" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"scale": math.nan},
        {"scale": math.inf},
        {"scale": -1.0},
        {"growth_factor": "2.0"},
        {"growth_interval": None},
        {"other": 1.0},
    ],
)
def test_numbers_that_no_scaler_has_are_refused(tmp_path, change):
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, Net(), scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    scaler = torch.amp.GradScaler("cpu")
    manager.load_checkpoint(path, scaler=scaler)
    assert scaler.get_scale() == 8.0
    forge_state(path, lambda state: state["scaler"].update(change))
    # One that is off takes no state, whatever it is.
    manager.load_checkpoint(path, scaler=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(CheckpointError, match=r"state\.json: the scaler's state was not written"):
        manager.load_checkpoint(path, scaler=scaler)
    assert scaler.get_scale() == 8.0


@pytest.mark.parametrize("key", sorted(STATE_KEYS))
def test_a_state_without_one_of_its_keys_is_refused(tmp_path, key):
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, Net())
    forge_state(path, lambda state: state.pop(key))
    with pytest.raises(CheckpointError, match=r"state\.json was not written by overt: keys"):
        manager.load_checkpoint(path, Net())
