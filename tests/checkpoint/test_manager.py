import errno
import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overt.checkpoint import storage
from overt.checkpoint.manager import CheckpointManager
from overt.distributed import init_distributed
from overt.errors import CheckpointError, ConfigError


class Net(nn.Module):
    def __init__(self, order=("first", "second", "third")):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(3, 3))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        for name in ("first", "second", "third"):
            x = getattr(self, name)(x)
        return x


class Parallel(nn.Module):
    """Names its inner module as DistributedDataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def train(model, optimizer, steps=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def adamw(model):
    return torch.optim.AdamW(
        [
            {"params": list(model.first.parameters()), "lr": 0.1, "weight_decay": 0.0},
            {"params": [*model.second.parameters(), *model.third.parameters()], "lr": 0.01},
        ],
        betas=(0.8, 0.9),
    )


def names(directory):
    """Without what is being deleted: that goes on while the run does."""
    found = sorted(path.name for path in Path(directory).iterdir())
    return [name for name in found if not name.startswith(".overt-deleting-")]


def same_entries(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad", "RMSprop", "NAdam"])
def test_full_state_comes_back_and_training_goes_on_bit_for_bit(tmp_path, background, kind):
    torch.manual_seed(0)
    extra = {"momentum": 0.9} if kind == "SGD" else {}

    def build():
        model = Net()
        return model, getattr(torch.optim, kind)(model.parameters(), lr=0.05, **extra)

    model, optimizer = build()
    average = Net()
    train(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    tensors = {"rank0/torch": torch.get_rng_state(), "rank1/torch": torch.arange(5)}
    manager = CheckpointManager(tmp_path, background=background)
    path = manager.save_checkpoint(
        4,
        model,
        optimizer,
        scheduler,
        scaler,
        {"val_loss": np.float32(0.5), "accuracy": torch.tensor(0.25)},
        step=12,
        ema=average,
        state={"position": [4, 17], "run_id": "abc", "best": None},
        tensors=tensors,
        config_yaml="seed: 3\n",
    )
    manager.wait()
    assert path == tmp_path / "step_00000012"

    other, other_optimizer = build()
    train(other, other_optimizer, seed=9)
    other_average, other_scaler = Net(), torch.amp.GradScaler("cpu", init_scale=2.0)
    loaded = CheckpointManager(tmp_path).load_checkpoint(
        None, other, other_optimizer, other_scaler, ema=other_average
    )
    assert loaded["path"] == path
    assert (loaded["epoch"], loaded["step"], loaded["best_metric"]) == (4, 12, 0.5)
    assert loaded["metrics"] == {"val_loss": 0.5, "accuracy": 0.25}
    assert loaded["state"] == {"position": [4, 17], "run_id": "abc", "best": None}
    assert loaded["config_yaml"] == "seed: 3\n"
    assert loaded["scheduler"]["milestones"] == {2: 1, 5: 1}
    assert all(torch.equal(loaded["tensors"][name], tensors[name]) for name in tensors)
    assert other_scaler.state_dict() == scaler.state_dict()
    assert same(average.state_dict().values(), other_average.state_dict().values())

    train(model, optimizer, seed=5)
    train(other, other_optimizer, seed=5)
    assert same(model.state_dict().values(), other.state_dict().values())


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


def test_optimizer_state_follows_names_not_order(tmp_path):
    torch.manual_seed(0)
    model = Net()
    optimizer = adamw(model)
    train(model, optimizer)
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)

    other = Net(order=("third", "first", "second"))
    for parameter in other.second.parameters():
        parameter.requires_grad_(False)
    groups = [
        {"params": list(other.third.parameters()), "lr": 5.0},
        {"params": list(other.first.parameters()), "lr": 6.0},
    ]
    regrouped = torch.optim.AdamW(groups, betas=(0.1, 0.2))
    CheckpointManager(tmp_path).load_checkpoint(None, other, regrouped)
    assert [group["lr"] for group in regrouped.param_groups] == [0.01, 0.1]
    assert regrouped.param_groups[1]["weight_decay"] == 0.0
    assert regrouped.param_groups[0]["betas"] == (0.8, 0.9)
    for name in ("first", "third"):
        for ours, theirs in zip(
            getattr(model, name).parameters(), getattr(other, name).parameters(), strict=True
        ):
            assert same_entries(optimizer.state[ours], regrouped.state[theirs])


def test_unfrozen_and_regrouped_parameters(tmp_path, caplog):
    model = Net()
    frozen = torch.optim.AdamW(model.first.parameters(), lr=0.1)
    model.first(torch.ones(1, 3)).sum().backward()
    frozen.step()
    frozen.add_param_group({"params": list(model.third.parameters()), "lr": 0.7})  # no state yet
    CheckpointManager(tmp_path).save_checkpoint(0, model, frozen)
    everything = torch.optim.AdamW(model.parameters(), lr=0.3)
    train(model, everything)
    CheckpointManager(tmp_path).load_checkpoint(None, model, everything)
    assert model.first.weight in everything.state
    assert model.third.weight not in everything.state  # it had none when saved
    assert model.second.weight in everything.state  # unknown to the checkpoint: left alone
    assert everything.param_groups[0]["lr"] == 0.3
    assert "different lr" in caplog.text
    train(model, everything)


def test_state_of_another_precision_is_not_rounded(tmp_path):
    """torch's own load_state_dict would cast float32 moments to the parameter's bfloat16."""
    model = nn.Linear(2, 2).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    moments = torch.tensor([[1.0 + 2**-20, 2.0], [3.0, 4.0]])
    optimizer.state[model.weight] = {"momentum_buffer": moments, "count": 3, "note": None}
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)
    optimizer.state.clear()
    CheckpointManager(tmp_path).load_checkpoint(None, model, optimizer)
    restored = optimizer.state[model.weight]
    assert torch.equal(restored["momentum_buffer"], moments)
    assert (restored["count"], restored["note"]) == (3, None)


def test_state_keeps_the_memory_order_of_its_parameter(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    moments = optimizer.state[model.weight]["exp_avg"].clone()
    CheckpointManager(tmp_path).save_checkpoint(0, model, optimizer)
    CheckpointManager(tmp_path).load_checkpoint(None, model, optimizer)
    restored = optimizer.state[model.weight]["exp_avg"]
    assert torch.equal(restored, moments)
    assert restored.stride() == model.weight.stride()


def test_optimizers_that_do_not_belong_are_refused(tmp_path):
    model = Net()
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointError, match=r"2 parameter\(s\) that the model does not have"):
        manager.save_checkpoint(0, model, torch.optim.SGD(nn.Linear(1, 1).parameters()))
    manager.save_checkpoint(0, model, adamw(model))
    with pytest.raises(CheckpointError, match=r"state of AdamW, but the optimizer is SGD"):
        manager.load_checkpoint(None, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(CheckpointError, match="pass the model together"):
        manager.load_checkpoint(None, None, adamw(model))


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


def test_resume_needs_the_same_model(tmp_path):
    manager = CheckpointManager(tmp_path)
    path = manager.save_checkpoint(0, Net())
    bigger = Net()
    bigger.register_buffer("fresh", torch.zeros(1))
    with pytest.raises(CheckpointError, match="missing: 1"):
        manager.load_checkpoint(path, bigger)
    model = nn.Module()
    model.register_buffer("weight", torch.zeros(1))
    model.register_buffer("pos_emb", torch.zeros(3))
    path = manager.save_checkpoint(1, model)
    model.pos_emb = torch.zeros(4)
    with pytest.raises(CheckpointError, match="skipped: 1"):
        manager.load_checkpoint(path, model)


def test_what_json_cannot_hold_is_named_and_nothing_is_written(tmp_path):
    manager = CheckpointManager(tmp_path)
    for bad, where in (
        ({"a": {"b": [1, object()]}}, r"state\.state\.a\.b\[1\] is a object"),
        ({"a": torch.zeros(2)}, r"state\.state\.a is a Tensor"),
        ({"a": {(1, 2): 3}}, r"state\.state\.a is a dict"),
    ):
        with pytest.raises(CheckpointError, match=where):
            manager.save_checkpoint(0, Net(), state=bad)

    class WithObject(Net):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(CheckpointError, match=r"_extra_state of WithObject is a dict"):
        manager.save_checkpoint(0, WithObject())
    assert names(tmp_path) == []


# --- best, last, retention -------------------------------------------------------------------


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
    real = storage.write_folder

    def spoil(*arguments, **named):
        stored = real(*arguments, **named)
        os.truncate(stored.path / "model.safetensors", 10)
        return stored

    monkeypatch.setattr(storage, "write_folder", spoil)
    with pytest.raises(CheckpointError, match="not as it should be"):
        manager.save_checkpoint(1, Net())
    assert manager.get_latest_checkpoint() == tmp_path / "epoch_0000"
    monkeypatch.undo()
    assert manager.load_checkpoint()["epoch"] == 0
    assert "epoch_0001.broken" in names(tmp_path)
    assert os.readlink(tmp_path / "latest") == "epoch_0000"


def test_a_step_saved_twice_replaces_nothing(tmp_path):
    manager = CheckpointManager(tmp_path)
    first = manager.save_checkpoint(0, Net(), step=5)
    second = manager.save_checkpoint(0, Net(), step=5)
    assert (first.name, second.name) == ("step_00000005", "step_00000005-2")
    assert manager.load_checkpoint()["path"] == second


def test_settings_and_metrics_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint.mode='best'.*'min' or 'max'"):
        CheckpointManager(tmp_path, mode="best")
    for name in ("save_frequency", "keep_last_n"):
        with pytest.raises(ConfigError, match=name):
            CheckpointManager(tmp_path, **{name: 0})
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointError, match=r"'val_loss', which is not among .*\(AJ, OA\)"):
        manager.save_checkpoint(0, Net(), metrics={"OA": 1.0, "AJ": 2.0})
    with pytest.raises(CheckpointError, match=r"\(none\)"):
        manager.save_checkpoint(0, Net(), is_best=True)
    manager.save_checkpoint(0, Net(), metrics={"OA": 1.0}, is_best=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made"):
        CheckpointManager(tmp_path / "file" / "folder")


def test_should_save_counts_epochs_from_zero(tmp_path):
    manager = CheckpointManager(tmp_path, save_frequency=3)
    assert [epoch for epoch in range(9) if manager.should_save(epoch)] == [2, 5, 8]


def test_loading_what_is_not_there_or_foreign(tmp_path):
    manager = CheckpointManager(tmp_path)
    assert manager.get_latest_checkpoint() is None
    with pytest.raises(CheckpointError, match="no good checkpoint"):
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


# --- background ------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch):
    """Writing waits until the event is set."""
    release, real = threading.Event(), storage.write_folder

    def wait_then_write(*arguments, **named):
        assert release.wait(60)
        return real(*arguments, **named)

    monkeypatch.setattr(storage, "write_folder", wait_then_write)
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
    raise storage.save_error(directory, "it", 1, OSError(errno.ENOSPC, "No space left"))


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
        patch.setattr(storage, "write_folder", fail_to_write)
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
        import sys
        from torch import nn
        from overt.checkpoint import storage
        from overt.checkpoint.manager import CheckpointManager
        manager = CheckpointManager(sys.argv[1], background=True)
        manager.save_checkpoint(0, nn.Linear(2, 2))
        if sys.argv[2] == "fail":
            manager.wait()
            def fail(*_, **__):
                raise RuntimeError("the disk is gone")
            storage.write_folder = fail
            manager.save_checkpoint(1, nn.Linear(2, 2))
        """
    )
    for how, said in (("fail", "was NOT saved: the disk is gone"), ("good", "")):
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / how, how],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said in done.stderr
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", ["foreach", "fused", "capturable"])
def test_cuda_state_comes_back_and_training_goes_on_bit_for_bit(tmp_path, background, how):
    torch.manual_seed(0)

    def build():
        model = nn.Sequential(nn.Linear(64, 4096), nn.Linear(4096, 8)).cuda()
        return model, torch.optim.AdamW(model.parameters(), **{how: True})

    def steps(model, optimizer, seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        for _ in range(3):
            optimizer.zero_grad()
            data = torch.randn(16, 64, generator=generator, device="cuda")
            model(data).square().mean().backward()
            optimizer.step()

    model, optimizer = build()
    steps(model, optimizer, 0)
    manager = CheckpointManager(tmp_path, background=background)
    manager.save_checkpoint(0, model, optimizer)
    steps(model, optimizer, 1)
    other, other_optimizer = build()
    manager.load_checkpoint(None, other, other_optimizer)
    steps(other, other_optimizer, 1)
    assert same(model.state_dict().values(), other.state_dict().values())


# --- crashes and processes -------------------------------------------------------------------


def save_forever(folder, background, reached):
    torch.set_num_threads(1)
    model = nn.Linear(1000, 1000)
    manager = CheckpointManager(folder, keep_last_n=2, background=background)
    for step in itertools.count(1):
        with torch.no_grad():
            model.weight.fill_(step)
        manager.save_checkpoint(0, model, step=step, metrics={"val_loss": 1.0 / step})
        reached.send(step)


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
def test_killed_at_any_moment_the_last_good_one_loads(tmp_path, background):
    chance = random.Random(background)
    context = multiprocessing.get_context("forkserver")
    for _ in range(2):
        steps, reached = context.Pipe(duplex=False)
        process = context.Process(target=save_forever, args=(tmp_path, background, reached))
        process.start()
        # Two saves have begun, so one is done; then at any point of the next ones.
        for _ in range(chance.randint(2, 6)):
            step = steps.recv()
        threading.Event().wait(chance.random() * 0.02)
        process.kill()
        process.join()

        model = nn.Linear(1000, 1000)
        manager = CheckpointManager(tmp_path, keep_last_n=2)
        loaded = manager.load_checkpoint(None, model)
        assert loaded["step"] >= step - background
        assert torch.all(model.weight == loaded["step"])
        assert all(storage.verify(one.path).good for one in storage.scan(tmp_path)[0])
        assert not list(tmp_path.glob(".*"))
        assert (tmp_path / "latest").resolve() == loaded["path"]


def save_and_load(folder):
    """What is said to a process that asks for a checkpoint that is not there."""
    world = init_distributed("cpu")
    manager = CheckpointManager(folder)
    torch.manual_seed(world.rank)
    model = nn.Linear(2, 2)
    ddp = DistributedDataParallel(model)
    for epoch in (0, 1):
        with torch.no_grad():
            model.weight.fill_(epoch)
        if world.is_main:  # nobody waits for the other: it may save alone
            manager.save_checkpoint(epoch, ddp)
    if not world.is_main:
        assert manager.save_checkpoint(7, ddp) == folder / "epoch_0007"
    dist.barrier()
    if world.is_main:
        os.truncate(folder / "epoch_0001" / "model.safetensors", 5)
    dist.barrier()
    loaded = manager.load_checkpoint(None, ddp)
    assert loaded["epoch"] == 0
    assert torch.all(model.weight == 0)
    with pytest.raises(CheckpointError) as refused:
        manager.load_checkpoint(folder / "absent", ddp)
    return str(refused.value)


def test_only_the_main_process_writes_and_all_load_the_same(tmp_path, run_processes):
    said = run_processes(save_and_load, 2, tmp_path / "run")
    assert all("absent" in words for words in said)
    assert names(tmp_path / "run") == ["epoch_0000", "epoch_0001.broken", "latest"]


def test_a_process_that_does_not_see_the_folder_says_so(tmp_path, monkeypatch):
    manager = CheckpointManager(tmp_path)
    elsewhere = (tmp_path / "elsewhere", None)
    monkeypatch.setattr("overt.checkpoint.manager.broadcast_object", lambda _: elsewhere)
    manager.save_checkpoint(0, Net())
    with pytest.raises(CheckpointError, match="shared file system"):
        manager.load_checkpoint()


def test_manifest_and_state_are_plain_json(tmp_path):
    model = Net()
    path = CheckpointManager(tmp_path).save_checkpoint(3, model, adamw(model), step=9)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["epoch"], manifest["world_size"]) == (9, 3, 1)
    assert set(manifest["files"]) == set(names(path)) - {"manifest.json"}
    groups = json.loads((path / "state.json").read_text())["optimizer"]["groups"]
    assert groups[0]["parameters"] == ["first.weight", "first.bias"]
    assert groups[0]["betas"] == [0.8, 0.9]


def test_a_scaler_without_saved_state_starts_anew_with_a_warning(tmp_path, caplog):
    manager = CheckpointManager(tmp_path)
    manager.save_checkpoint(0, Net(), scaler=torch.amp.GradScaler("cpu", enabled=False))
    with caplog.at_level(logging.WARNING):
        manager.load_checkpoint(None, None, None, torch.amp.GradScaler("cpu", enabled=False))
        assert caplog.text == ""
        manager.load_checkpoint(None, None, None, torch.amp.GradScaler("cpu"))
    assert "starts anew" in caplog.text
