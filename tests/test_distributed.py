"""overt/distributed.py: the device of a rank, and collectives among ranks."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_launch_environment import NAMES, SLURM, TORCHRUN
from torch.distributed import TCPStore

from overt.distributed import (
    World,
    all_reduce_sum,
    barrier,
    broadcast_object,
    gather_objects,
    get_rank,
    get_world_size,
    init_distributed,
    is_main_process,
    main_first,
    seed_everything,
)
from overt.errors import DataError, LaunchError

CPU = torch.device("cpu")


# --- devices --------------------------------------------------------------------------------------


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, dict[str, str]], None]:
    """Pretend that there are so many CUDA devices, and that the launcher set these variables."""

    def pretend(count: int, environment: dict[str, str]) -> None:
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
        # No process group: only the choice of the device is looked at.
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)

    return pretend


def test_more_processes_than_devices_are_refused(devices: Callable[..., None]) -> None:
    devices(1, TORCHRUN)
    with pytest.raises(LaunchError, match=r"4 processes.*sees 1 CUDA.*Start 1 processes per host"):
        init_distributed()
    devices(4, TORCHRUN)
    assert init_distributed().device == torch.device("cuda", 1)
    assert init_distributed("cpu").device == CPU


def test_one_of_several_devices_may_be_named(devices: Callable[..., None]) -> None:
    devices(2, {})
    assert init_distributed("cuda:1").device == torch.device("cuda", 1)
    with pytest.raises(LaunchError, match=r"cuda:2, but torch sees 2 .*cuda:0 to cuda:1"):
        init_distributed("cuda:2")
    devices(4, TORCHRUN)
    with pytest.raises(LaunchError, match=r"cuda:1 with \d+ processes"):
        init_distributed("cuda:1")


def test_a_mac_s_gpu_is_for_one_process_that_asks_for_it(
    devices: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices(0, {})
    with pytest.raises(LaunchError, match=r"mps but torch sees no Apple GPU"):
        init_distributed("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert init_distributed("mps").device == torch.device("mps")
    assert init_distributed().device == CPU  # auto does not choose it
    devices(0, TORCHRUN)
    with pytest.raises(LaunchError, match=r"mps with \d+ processes.*Start one process"):
        init_distributed("mps")


def test_a_slurm_task_that_sees_one_device_takes_it(devices: Callable[..., None]) -> None:
    second = SLURM | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
    devices(1, second)
    assert init_distributed().device == torch.device("cuda", 0)
    devices(2, second)
    assert init_distributed().device == torch.device("cuda", 1)


def test_cuda_that_is_not_there_is_refused_when_asked_for(devices: Callable[..., None]) -> None:
    devices(0, {})
    with pytest.raises(LaunchError, match=r"training\.device=cuda but.*set training\.device=cpu"):
        init_distributed("cuda")
    assert init_distributed("auto").device == CPU


# --- among processes ------------------------------------------------------------------------------


def talk() -> dict[str, Any]:
    world = init_distributed("cpu")
    rank, world_size, local_rank, device = world  # the contract: it unpacks
    barrier()
    return {
        "world": (rank, world_size, local_rank, device.type),
        "asked": (get_rank(), get_world_size(), is_main_process(), world.is_main),
        "gathered": gather_objects({"rank": rank, "text": "x" * rank}),
        "broadcast": broadcast_object([rank, "from", rank]),
        "sum": all_reduce_sum(torch.tensor([1.0, float(rank)])).tolist(),
    }


def expected(rank: int, size: int) -> dict[str, Any]:
    return {
        "world": (rank, size, rank, "cpu"),
        "asked": (rank, size, rank == 0, rank == 0),
        "gathered": [{"rank": other, "text": "x" * other} for other in range(size)],
        "broadcast": [0, "from", 0],
        "sum": [float(size), float(sum(range(size)))],
    }


def test_two_processes_talk(run_processes: Callable[..., list[Any]]) -> None:
    assert run_processes(talk, 2) == [expected(0, 2), expected(1, 2)]


LEAVES = """
from pathlib import Path
from overt.distributed import init_distributed, shutdown
init_distributed("cpu")
import torch.distributed.nn.functional  # as torch does by itself, for an optimizer say
shutdown()
print(*((thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_thread_of_the_group_is_left_behind() -> None:
    """One that lets a tensor go while Python ends would abort the process: exit code 134."""
    store = TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    meeting["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is here
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES],
            env={**os.environ, **meeting, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    for process in processes:
        threads, _ = process.communicate()
        assert process.returncode == 0
        assert "gloo" not in threads


def test_one_process_talks_to_itself() -> None:
    assert talk() == expected(0, 1)
    assert not torch.distributed.is_initialized()  # and forms no group for it


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seeds_repeat_and_differ_by_rank_and_seed() -> None:
    seen = []
    for seed, rank in [(1, 0), (1, 1), (2, 0), (1, 0), (2**63, 0)]:
        seed_everything(seed, rank)
        seen.append(draws())
    assert seen[0] == seen[3]
    # Each of the three generators for itself.
    for numbers in zip(seen[0], seen[1], seen[2], seen[4], strict=True):
        assert len(set(numbers)) == 4


def test_world_is_the_tuple_of_the_contract() -> None:
    assert tuple(World(3, 8, 1, CPU)) == (3, 8, 1, CPU)
    assert not World(3, 8, 1, CPU).is_main


def make_on_main(folder: Path, failure: str) -> str:
    world = init_distributed("cpu")

    def make() -> None:
        assert world.is_main
        if failure == "refused":
            raise DataError("the disk is full")
        if failure == "broken":
            raise ZeroDivisionError("a bug")
        (folder / "made").write_text("complete")

    try:
        main_first(make)
    except Exception as error:  # of any kind: it is the answer
        return f"{type(error).__name__}: {error}"
    return (folder / "made").read_text()


def test_one_makes_and_the_others_wait(
    run_processes: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert run_processes(make_on_main, 2, tmp_path, "") == ["complete"] * 2
    assert (
        run_processes(make_on_main, 2, tmp_path, "refused") == ["DataError: the disk is full"] * 2
    )
    broken = run_processes(make_on_main, 2, tmp_path, "broken")
    assert broken[0] == "ZeroDivisionError: a bug"
    assert broken[1] == "RuntimeError: the main rank failed with ZeroDivisionError: a bug"


def test_one_process_makes_by_itself(tmp_path: Path) -> None:
    assert make_on_main(tmp_path, "") == "complete"
    assert make_on_main(tmp_path, "broken") == "ZeroDivisionError: a bug"


def waits_for_a_rank_that_never_comes(folder: Path) -> None:
    if os.environ["RANK"] == "1":
        os._exit(3)  # killed during its imports
    try:
        init_distributed("cpu", timeout_minutes=0.02)
    except LaunchError as error:
        (folder / "said").write_text(str(error))


def test_a_rank_that_dies_at_the_start_is_named_in_time(
    tmp_path: Path, run_processes: Callable[..., list[Any]]
) -> None:
    assert run_processes(waits_for_a_rank_that_never_comes, 2, tmp_path, dies=True) == [0, 3]
    said = (tmp_path / "said").read_text()
    assert said.startswith("rank 0 of 2 waited 0.02 minutes at the start: rank(s) 1 did not join.")
