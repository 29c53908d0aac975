"""CheckpointManager: the full state, crashes, and several processes."""

import itertools
import json
import multiprocessing
import os
import random
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overt.checkpoint import storage
from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.manifest import verify
from overt.distributed import init_distributed
from overt.errors import CheckpointError, ConfigError
from tests.checkpoint.small_net import Net, adamw, names, same, train


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
        assert all(verify(entry.path).good for entry in storage.scan(tmp_path)[0])
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
