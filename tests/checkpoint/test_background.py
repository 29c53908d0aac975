"""Saves in the background: what they hold, and where their errors surface."""

import errno
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from overt.checkpoint import writing
from overt.checkpoint.manager import CheckpointManager
from overt.errors import CheckpointError
from tests.checkpoint.small_net import Net, adamw, names, same, same_entries, train


@pytest.fixture
def held(monkeypatch):
    """Writing waits until the event is set."""
    release, real = threading.Event(), writing.write_folder

    def wait_then_write(*arguments, **named):
        assert release.wait(60)
        return real(*arguments, **named)

    monkeypatch.setattr(writing, "write_folder", wait_then_write)
    yield release
    release.set()


def test_changes_during_the_write_do_not_reach_the_file(tmp_path, held):
    torch.manual_seed(0)
    model, average = Net(), Net()
    optimizer = adamw(model)
    train(model, optimizer)
    tensors, state = {"rng": torch.arange(4)}, {"losses": [1.0]}
    weights = [value.clone() for value in model.state_dict().values()]
    moments = optimizer.state[model.first.weight]["exp_avg"].clone()
    means = [value.clone() for value in average.state_dict().values()]
    manager = CheckpointManager(tmp_path, background=True)
    manager.save_checkpoint(0, model, optimizer, ema=average, tensors=tensors, state=state)
    assert manager.get_latest_checkpoint() is None  # not written yet

    train(model, optimizer)
    for module in (model, average):
        for value in module.state_dict().values():
            value.zero_()
    tensors["rng"].zero_()
    state["losses"].append(2.0)
    optimizer.param_groups[0]["lr"] = 99.0
    held.set()
    manager.wait()

    fresh, fresh_average = Net(), Net()
    fresh_optimizer = adamw(fresh)
    loaded = manager.load_checkpoint(None, fresh, fresh_optimizer, ema=fresh_average)
    assert same(weights, fresh.state_dict().values())
    assert same(means, fresh_average.state_dict().values())
    assert torch.equal(fresh_optimizer.state[fresh.first.weight]["exp_avg"], moments)
    assert fresh_optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(loaded["tensors"]["rng"], torch.arange(4))
    assert loaded["state"] == {"losses": [1.0]}


def test_the_next_save_waits_for_the_one_in_flight(tmp_path, held):
    model = Net()
    manager = CheckpointManager(tmp_path, background=True)
    manager.save_checkpoint(0, model)
    second = threading.Thread(target=manager.save_checkpoint, args=(1, model))
    second.start()
    assert names(tmp_path) == []
    held.set()
    second.join()
    manager.wait()
    assert names(tmp_path) == ["epoch_0000", "epoch_0001", "latest"]


def fail_to_write(directory, *_, **__):
    raise writing.save_error(directory, "it", 1, OSError(errno.ENOSPC, "No space left"))


@pytest.mark.parametrize(
    "hear",
    [
        lambda manager: manager.wait(),
        lambda manager: manager.save_checkpoint(1, Net()),
        lambda manager: manager.load_checkpoint(),
    ],
    ids=["wait", "save", "load"],
)
def test_an_error_of_the_writer_surfaces_once(tmp_path, monkeypatch, hear):
    model = Net()
    manager = CheckpointManager(tmp_path, background=True)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_folder", fail_to_write)
        manager.save_checkpoint(0, model, metrics={"val_loss": 1.0})
        manager._writer._thread.join()
        assert manager.best_metric is None  # it was not saved
        with pytest.raises(CheckpointError, match="No space left"):
            hear(manager)
    manager.save_checkpoint(2, model)
    manager.wait()
    assert manager.load_checkpoint()["epoch"] == 2


def test_exit_waits_for_the_write_and_reports_its_error(tmp_path):
    script = textwrap.dedent(
        """
        import os, sys
        from torch import nn
        from overt.checkpoint import writing
        from overt.checkpoint.manager import CheckpointManager
        how = "fail" if os.fork() else "good"
        manager = CheckpointManager(f"{sys.argv[1]}/{how}", background=True)
        manager.save_checkpoint(0, nn.Linear(2, 2))
        if how == "fail":
            os.wait()
            manager.wait()
            def fail(*_, **__):
                raise RuntimeError("the disk is gone")
            writing.write_folder = fail
            manager.save_checkpoint(1, nn.Linear(2, 2))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("was NOT saved: the disk is gone") == 1
    for how in ("fail", "good"):
        assert names(tmp_path / how) == ["epoch_0000", "latest"]


def test_buffers_grow_with_the_state(tmp_path):
    model = Net()
    optimizer = adamw(model)
    manager = CheckpointManager(tmp_path, background=True)
    manager.save_checkpoint(0, model, optimizer)  # no optimizer state yet
    train(model, optimizer)
    manager.save_checkpoint(1, model, optimizer)
    other = Net()
    other_optimizer = adamw(other)
    manager.load_checkpoint(None, other, other_optimizer)
    assert same_entries(optimizer.state[model.third.bias], other_optimizer.state[other.third.bias])
