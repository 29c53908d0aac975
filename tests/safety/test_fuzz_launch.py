"""Fuzz: node lists, task counts and variables of a launcher either parse or are refused."""

from fuzzing import examples, parses_or_refuses
from hypothesis import given
from hypothesis import strategies as st

from overt.launch_environment import first_host, read_launch

NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
)  # fmt: skip
NUMBERS = st.sampled_from(("0", "1", "2", "3", "-1", "", " 2 ", "2.0", "9" * 5000, "٣"))
TASKS = st.from_regex(r"[0-9]{1,3}(\(x[0-9]{1,12}\))?(,[0-9]{1,2})?", fullmatch=True)
LISTS = st.from_regex(r"[a-z]{0,3}(\[[0-9,\-]{0,9}\]?)?[a-z,]{0,4}", fullmatch=True)
VALUES = NUMBERS | TASKS | LISTS | st.text(max_size=6)


@examples(120)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_variables_of_a_launcher(environment: dict[str, str]) -> None:
    parses_or_refuses(lambda: read_launch(environment))


@examples(80)
@given(TASKS, LISTS, st.integers(0, 3), st.integers(2, 4))
def test_variables_of_slurm(per_node: str, nodes: str, rank: int, tasks: int) -> None:
    environment = {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(tasks),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
    }
    parses_or_refuses(lambda: read_launch(environment))


@examples(40)
@given(LISTS | st.text())
def test_node_lists(text: str) -> None:
    assert isinstance(first_host(text), str)


@examples(40)
@given(
    st.from_regex(r"[a-z][a-z0-9-]{0,5}", fullmatch=True),
    st.lists(st.integers(0, 99999), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_the_first_host_of_a_real_list(prefix: str, numbers: list[int], width: int) -> None:
    hosts = [f"{number:0{width}}" for number in numbers]
    assert first_host(f"{prefix}[{','.join(hosts)}],other") == prefix + hosts[0]
    assert first_host(f"{prefix}[{hosts[0]}-{hosts[-1]}]") == prefix + hosts[0]
    assert first_host(f"{prefix}{hosts[0]},{prefix}{hosts[-1]}") == prefix + hosts[0]
