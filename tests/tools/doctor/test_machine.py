"""overt/tools/doctor/machine.py: versions, GPUs, memory, cores and ports of this host."""

import os
import socket
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from overt.distributed import World
from overt.launch_environment import Launch
from overt.tools.doctor import machine
from overt.tools.doctor.report import Level


def test_a_missing_gpu_fails_only_where_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    levels = [machine.gpus(device, None).level for device in ("cpu", "auto", "cuda")]
    assert levels == [Level.OK, Level.WARN, Level.FAIL]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_named_and_computes() -> None:
    found = machine.gpus("cuda", World(0, 1, 0, torch.device("cuda", 0)))
    assert torch.cuda.get_device_name(0) in found.finding
    assert found.level < Level.FAIL
    assert machine.nccl({"NCCL_P2P_DISABLE": "1"}).level is Level.WARN


def test_an_unsupported_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.versions().level is Level.OK
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    assert machine.versions().level is Level.WARN


def test_torch_that_every_start_parses_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert machine.bytecode().level is Level.OK  # not there, but can be written
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    check = machine.bytecode()
    assert check.level is Level.WARN
    assert "PYTHONDONTWRITEBYTECODE" in check.finding
    cached = Path(cache_from_source(torch.__file__))
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert machine.bytecode().level is Level.OK


def test_a_folder_that_takes_no_bytecode_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert f"no access to {tmp_path}" in machine.bytecode().finding


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_said(taken_port: int) -> None:
    launch = Launch(0, 1, 0, 1, "single process", "", taken_port)
    check = machine.rendezvous(launch)
    assert check.level is Level.WARN
    assert f"port {taken_port}" in check.finding


def test_little_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = SimpleNamespace(total=1 << 26, used=0, free=1 << 26)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert machine.loader_memory(4, shared=tmp_path).level is Level.WARN
    assert machine.loader_memory(0, shared=tmp_path).level is Level.OK


def test_more_loaders_than_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert machine.processors(2, 7).level is Level.OK
    check = machine.processors(8, 8)
    assert check.level is Level.WARN
    assert "training.num_workers=1" in check.remedy
