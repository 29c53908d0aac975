"""Best, last and pinned checkpoints: what is kept, and what the links name."""

import errno
import math
import os

import pytest

from overt.checkpoint import storage, writing
from overt.checkpoint.manager import CheckpointManager
from overt.errors import CheckpointError
from tests.checkpoint.small_net import Net, names


def save_values(manager, values, model=None):
    for epoch, value in enumerate(values):
        manager.save_checkpoint(epoch, model or Net(), metrics={"val_loss": value})


@pytest.mark.parametrize("background", [False, True])
def test_best_and_last_are_kept_as_separate_sets(tmp_path, background):
    manager = CheckpointManager(tmp_path, keep_best_n=2, keep_last_n=2, background=background)
    save_values(manager, [3.0, 1.0, 2.0, 5.0, 4.0, math.nan, 6.0])
    manager.wait()
    kept = ["epoch_0001", "epoch_0002", "epoch_0005", "epoch_0006"]
    assert names(tmp_path) == ["best", *kept, "latest"]
    assert os.readlink(tmp_path / "best") == "epoch_0001"
    assert os.readlink(tmp_path / "latest") == "epoch_0006"
    assert manager.get_best_checkpoint() == tmp_path / "epoch_0001"
    assert manager.get_latest_checkpoint() == tmp_path / "epoch_0006"
    assert manager.best_metric == 1.0

    again = CheckpointManager(tmp_path, keep_best_n=2, keep_last_n=2)
    assert again.best_metric == 1.0
    again.save_checkpoint(7, Net(), metrics={"val_loss": 0.5})
    assert names(tmp_path) == ["best", "epoch_0001", "epoch_0006", "epoch_0007", "latest"]
    assert os.readlink(tmp_path / "best") == "epoch_0007"


def test_the_best_by_further_metrics_are_kept_too(tmp_path):
    def open_manager():
        return CheckpointManager(
            tmp_path, 1, metric_name="aj", mode="max", keep_last_n=1, also_best=["oa", "davis/aj"]
        )

    manager = open_manager()
    values = [(1.0, 9.0, 3.0), (5.0, 2.0, math.nan), (2.0, 9.0, 8.0), (1.0, 1.0, 1.0)]
    for epoch, (aj, oa, davis) in enumerate(values):
        metrics = {"aj": aj, "oa": oa, "davis/aj": davis}
        manager.save_checkpoint(epoch, Net(), metrics=metrics)
        if epoch == 1:
            manager = open_manager()  # a resumed run reads them from disk
    links = {name: os.readlink(tmp_path / name) for name in ("best", "best_oa", "best_davis_aj")}
    assert links == {
        "best": "epoch_0001", "best_oa": "epoch_0000", "best_davis_aj": "epoch_0002"
    }  # fmt: skip
    kept = [name for name in names(tmp_path) if name.startswith("epoch")]
    assert kept == ["epoch_0000", "epoch_0001", "epoch_0002", "epoch_0003"]


@pytest.mark.parametrize("worthless", [math.nan, None, "diverged", [1.0]])
def test_what_is_not_a_number_never_ranks(tmp_path, worthless):
    """Wherever it stands: NaN compares as neither smaller nor larger."""
    manager = CheckpointManager(tmp_path, 1, keep_last_n=9, also_best=["oa"])
    for epoch, oa in enumerate([worthless, 3.0, worthless, 2.0, 4.0, worthless]):
        manager.save_checkpoint(epoch, Net(), metrics={"val_loss": 1.0, "oa": oa})
    assert os.readlink(tmp_path / "best_oa") == "epoch_0003"


def test_nan_is_no_first_best(tmp_path):
    manager = CheckpointManager(tmp_path, keep_best_n=1, keep_last_n=9)
    save_values(manager, [math.nan])
    assert not (tmp_path / "best").is_symlink()
    assert manager.best_metric is None
    save_values(manager, [math.nan, 5.0, math.nan])
    assert os.readlink(tmp_path / "best") == "epoch_0001"


def test_larger_is_better_with_mode_max(tmp_path):
    manager = CheckpointManager(tmp_path, keep_best_n=1, keep_last_n=1, mode="max")
    save_values(manager, [3.0, 7.0, 5.0, 7.0])
    assert manager.get_best_checkpoint().name == "epoch_0001"
    assert not manager.is_better_metric(7.0)
    assert manager.is_better_metric(7.5)
    assert not manager.is_better_metric(math.nan)


def test_the_caller_may_decide_what_is_best(tmp_path):
    manager = CheckpointManager(tmp_path, keep_best_n=1, keep_last_n=1)
    manager.save_checkpoint(0, Net(), metrics={"val_loss": 1.0})
    manager.save_checkpoint(1, Net(), metrics={"val_loss": 2.0}, is_best=True)
    manager.save_checkpoint(2, Net(), metrics={"val_loss": 0.1}, is_best=False)
    assert manager.get_best_checkpoint().name == "epoch_0001"
    assert names(tmp_path) == ["best", "epoch_0001", "epoch_0002", "latest"]


def test_no_best_set_keeps_the_best_value(tmp_path):
    manager = CheckpointManager(tmp_path, keep_best_n=0, keep_last_n=1)
    save_values(manager, [1.0, 2.0])
    assert names(tmp_path) == ["epoch_0001", "latest"]
    assert manager.best_metric == 1.0
    again = CheckpointManager(tmp_path, keep_best_n=0, keep_last_n=1)
    again.load_checkpoint()
    assert again.best_metric == 1.0


def test_another_metric_starts_its_own_ranking(tmp_path):
    CheckpointManager(tmp_path).save_checkpoint(0, Net(), metrics={"val_loss": 0.1})
    manager = CheckpointManager(tmp_path, metric_name="AJ", mode="max")
    assert manager.best_metric is None
    assert manager.get_best_checkpoint() is None


def test_the_other_mode_ranks_by_value_again(tmp_path):
    manager = CheckpointManager(tmp_path, keep_last_n=9)
    save_values(manager, [3.0, 9.0, 8.0])
    manager = CheckpointManager(tmp_path, keep_last_n=9, mode="max")
    assert (manager.get_best_checkpoint().name, manager.best_metric) == ("epoch_0001", 9.0)
    assert os.readlink(tmp_path / "best") == "epoch_0001"
    manager.save_checkpoint(3, Net(), metrics={"val_loss": 8.5})
    assert manager.get_best_checkpoint().name == "epoch_0001"
    manager.save_checkpoint(4, Net(), metrics={"val_loss": 9.5})
    assert manager.get_best_checkpoint().name == "epoch_0004"
    manager = CheckpointManager(tmp_path, keep_last_n=9)
    assert manager.get_best_checkpoint().name == "epoch_0000"


@pytest.mark.parametrize("change", [{"mode": "max"}, {"metric_name": "AJ"}])
def test_the_best_value_of_another_ranking_is_not_taken_over(tmp_path, change):
    """Where no best checkpoint is kept, only the value is known, and it is not comparable."""
    manager = CheckpointManager(tmp_path, keep_best_n=0, keep_last_n=1)
    manager.save_checkpoint(0, Net(), metrics={"val_loss": 1.0})
    manager.save_checkpoint(1, Net(), is_best=False)
    manager = CheckpointManager(tmp_path, keep_best_n=0, keep_last_n=1, **change)
    manager.load_checkpoint(None, Net())
    assert manager.best_metric is None


def test_manifests_that_do_not_tell_the_mode_are_read_as_before(tmp_path, monkeypatch):
    real = writing.write_folder

    def write_old(directory, name, files, facts, *others):
        return real(directory, name, files, without_mode(facts), *others)

    monkeypatch.setattr(writing, "write_folder", write_old)
    save_values(CheckpointManager(tmp_path, keep_last_n=9), [3.0, 1.0, 2.0])
    manager = CheckpointManager(tmp_path, keep_last_n=9)
    assert (manager.get_best_checkpoint().name, manager.best_metric) == ("epoch_0001", 1.0)


def without_mode(facts):
    assert "mode" in facts
    return {key: value for key, value in facts.items() if key != "mode"}


def test_pinned_checkpoints_stay(tmp_path):
    manager = CheckpointManager(tmp_path, keep_best_n=0, keep_last_n=1)
    storage.pin(manager.save_checkpoint(0, Net()), "another run starts from it")
    manager.save_checkpoint(1, Net())
    manager.save_checkpoint(2, Net())
    assert names(tmp_path) == ["epoch_0000", "epoch_0000.keep", "epoch_0002", "latest"]
    manager.wait()
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_deleted_when_the_new_one_is_not_as_it_should_be(tmp_path, monkeypatch):
    manager = CheckpointManager(tmp_path, keep_best_n=0, keep_last_n=1)
    manager.save_checkpoint(0, Net())
    real = writing.write_folder

    def spoil(*arguments, **named):
        stored = real(*arguments, **named)
        os.truncate(stored.path / "model.safetensors", 10)
        return stored

    monkeypatch.setattr(writing, "write_folder", spoil)
    with pytest.raises(CheckpointError, match="failed verification"):
        manager.save_checkpoint(1, Net())
    assert manager.get_latest_checkpoint() == tmp_path / "epoch_0000"
    monkeypatch.undo()
    assert manager.load_checkpoint()["epoch"] == 0
    assert "epoch_0001.broken" in names(tmp_path)
    assert os.readlink(tmp_path / "latest") == "epoch_0000"


@pytest.mark.parametrize("background", [False, True])
def test_a_resumed_run_prunes_to_its_new_setting_before_it_saves(tmp_path, monkeypatch, background):
    """Fewer checkpoints, as the error of a full disk advises, make space for the next one."""
    save_values(CheckpointManager(tmp_path, 1, keep_last_n=9), [3.0, 1.0, 4.0, 5.0, 6.0])
    manager = CheckpointManager(tmp_path, 0, keep_last_n=1, background=background)
    before = names(tmp_path)
    manager.load_checkpoint(tmp_path / "epoch_0002", Net())
    assert names(tmp_path) == before  # the resume may still be refused
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_file", full_disk)
        with pytest.raises(CheckpointError, match="keep fewer checkpoints"):
            save_at_once(manager)
    # The one it resumed from, the newest, and what the links name.
    kept = ["best", "epoch_0001", "epoch_0002", "epoch_0004", "latest"]
    assert names(tmp_path) == kept
    assert not list(tmp_path.glob(".*"))
    save_at_once(manager)
    assert names(tmp_path) == ["epoch_0005", "latest"]


def test_resuming_from_another_folder_prunes_nothing_before_the_save(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        save_values(CheckpointManager(tmp_path / folder, keep_last_n=9), [3.0, 2.0, 1.0])
    manager = CheckpointManager(tmp_path / "b", keep_best_n=0, keep_last_n=1)
    before = names(tmp_path / "b")
    manager.load_checkpoint(tmp_path / "a" / "epoch_0001", Net())
    monkeypatch.setattr(writing, "write_file", full_disk)
    with pytest.raises(CheckpointError, match="keep fewer checkpoints"):
        manager.save_checkpoint(5, Net())
    assert names(tmp_path / "b") == before


def save_at_once(manager):
    manager.save_checkpoint(5, Net())
    manager.wait()


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
