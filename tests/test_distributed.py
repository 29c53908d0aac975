"""overt/distributed.py: every way to be launched, every contradiction, and talk among processes."""

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
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from overt.distributed import (
    Launch,
    World,
    all_reduce_sum,
    barrier,
    broadcast_object,
    first_host,
    gather_objects,
    get_rank,
    get_world_size,
    init_distributed,
    is_main_process,
    main_first,
    read_launch,
    seed_everything,
)
from overt.errors import DataError, LaunchError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[007-009]",
}
SINGLE = Launch(0, 1, 0, 1, "single process", "", 0)
CPU = torch.device("cpu")


# --- what the environment says --------------------------------------------------------------------


def test_nothing_set_is_one_process() -> None:
    assert read_launch({"HOME": "/root", "MASTER_PORT": "1"}) == SINGLE


def test_torchrun() -> None:
    assert read_launch(TORCHRUN) == Launch(5, 8, 1, 4, "torchrun", "10.0.0.1", 29500)


def test_torchrun_inside_srun_is_torchrun() -> None:
    assert read_launch(SLURM | TORCHRUN).source == "torchrun"


def test_torchrun_with_one_process_is_a_group_of_one() -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    launch = read_launch(TORCHRUN | one)
    assert launch[:4] == (0, 1, 0, 1)


def test_slurm() -> None:
    launch = read_launch(SLURM)
    assert launch[:6] == (4, 5, 0, 1, "Slurm", "gpu007")
    assert read_launch(SLURM | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"})[
        :4
    ] == (1, 5, 1, 2)


def test_slurm_port_follows_from_the_job_and_can_be_given() -> None:
    ports = [read_launch(SLURM | {"SLURM_JOB_ID": str(job)}).master_port for job in (1, 2)]
    assert ports[0] != ports[1]
    assert all(1024 < port < 2**16 for port in ports)
    given_by_user = SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "4000"}
    assert read_launch(given_by_user)[5:] == ("head", 4000)


def test_slurm_uses_the_job_where_the_step_says_nothing() -> None:
    job = {key: value for key, value in SLURM.items() if not key.startswith("SLURM_STEP_N")}
    del job["SLURM_STEP_TASKS_PER_NODE"]
    job |= {"SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_JOB_NODELIST": "a1,b[2-3]"}
    assert read_launch(job)[:6] == (4, 5, 0, 1, "Slurm", "a1")


def test_one_slurm_task_needs_no_srun() -> None:
    alone = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    assert read_launch(alone) == SINGLE


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key not in names}


@pytest.mark.parametrize(
    ("environment", "found", "remedy"),
    [
        (TORCHRUN | {"RANK": "8"}, "rank 8 of 8", "ranks go from 0 to 7"),
        (TORCHRUN | {"RANK": "-1"}, "rank -1 of 8", "torchrun --nproc_per_node"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 of 4", "one launcher sets them all"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "of 9", "Unset RANK"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "of 0 processes", "one launcher"),
        ({"RANK": "0"}, "RANK=0 but not WORLD_SIZE, LOCAL_RANK", "torchrun --nproc_per_node"),
        (without(TORCHRUN, "MASTER_PORT"), "not MASTER_PORT", "sets all of them"),
        (TORCHRUN | {"WORLD_SIZE": "two"}, "WORLD_SIZE='two'", "not a whole number"),
        (TORCHRUN | {"MASTER_PORT": ""}, "MASTER_PORT=''", "not a whole number"),
        (without(SLURM, "SLURM_STEP_ID"), "5 tasks but was not started by srun", "`srun python"),
        (SLURM | {"SLURM_PROCID": "5"}, "rank 5 of 5", "0 to 4"),
        (SLURM | {"SLURM_PROCID": "x"}, "SLURM_PROCID='x'", "torchrun or srun"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS='x'", "unset it"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "which makes 4", "--ntasks-per-node"),
        (SLURM | {"SLURM_LOCALID": "1"}, "local rank 1 of 1", "contradict"),
    ],
)
def test_a_contradiction_is_refused_with_the_fix(
    environment: dict[str, str], found: str, remedy: str
) -> None:
    with pytest.raises(LaunchError) as refused:
        read_launch(environment)
    assert found in str(refused.value)
    assert remedy in str(refused.value)


NAMES = sorted(TORCHRUN | SLURM)
NUMBER_LIKE = st.sampled_from(["0", "1", "2", "8", "-1", "", "x", "2(x2)", "2(x", "gpu[1-2]"])


@given(st.dictionaries(st.sampled_from(NAMES), NUMBER_LIKE))
def test_any_environment_is_read_or_refused(environment: dict[str, str]) -> None:
    try:
        launch = read_launch(environment)
    except LaunchError:
        return
    assert 0 <= launch.rank < launch.world_size
    assert 0 <= launch.local_rank < launch.local_world_size <= launch.world_size


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu8", "gpu7"),
        ("gpu[007-012,20],cpu1", "gpu007"),
        ("gpu[5]", "gpu5"),
        ("rack[2,7-9]-node", "rack2-node"),
        ("n-1-[03-04].cluster,x", "n-1-03.cluster"),
        ("  gpu1 ", "gpu1"),
        ("", ""),
    ],
)
def test_first_host(nodes: str, expected: str) -> None:
    assert first_host(nodes) == expected


@given(st.text(alphabet="ab01[]-,. ", max_size=20))
def test_first_host_reads_anything(nodes: str) -> None:
    host = first_host(nodes)
    assert "," not in host or "[" in nodes


@given(
    st.from_regex(r"[a-z]{1,5}", fullmatch=True),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
)
def test_first_host_of_a_compressed_list_is_that_of_the_long_one(
    prefix: str, numbers: list[int]
) -> None:
    long = ",".join(f"{prefix}{number:03d}" for number in numbers)
    short = f"{prefix}[{','.join(f'{number:03d}-{number + 5:03d}' for number in numbers)}]"
    assert first_host(short) == first_host(long) == f"{prefix}{numbers[0]:03d}"


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
