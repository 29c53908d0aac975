"""overt/launch_environment.py: every way to be launched, and every contradiction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overt.errors import LaunchError
from overt.launch_environment import Launch, first_host, read_launch

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
NAMES = sorted(TORCHRUN | SLURM)


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
