"""What the launcher says of this process: torchrun, Slurm, or one process alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from overt.errors import LaunchError


class Launch(NamedTuple):
    """What the environment says about this process; `source` names who said it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    source: str
    master_addr: str
    master_port: int


def read_launch(environment: Mapping[str, str]) -> Launch:
    """Read torchrun's variables, else those of a Slurm step, else one process.

    torchrun comes first: inside `srun torchrun` both are set, and torchrun's are the finer ones.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        launch = _read_torchrun(environment)
    elif "SLURM_PROCID" in environment and _slurm_tasks(environment) > 1:
        launch = _read_slurm(environment)
    else:
        return Launch(0, 1, 0, 1, "single process", "", 0)
    if not 0 <= launch.rank < launch.world_size:
        raise LaunchError(
            f"{launch.source} says rank {launch.rank} of {launch.world_size} processes; ranks go "
            f"from 0 to {launch.world_size - 1}. Start all processes with one launcher: "
            "`torchrun --nproc_per_node=N -m overt.train ...` or `srun`."
        )
    if not 0 <= launch.local_rank < launch.local_world_size <= launch.world_size:
        raise LaunchError(
            f"{launch.source} says local rank {launch.local_rank} of {launch.local_world_size} "
            f"processes on this host and {launch.world_size} in all; these contradict each other. "
            "Unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE: one launcher sets them all."
        )
    return launch


def _read_torchrun(environment: Mapping[str, str]) -> Launch:
    needed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in environment]
    if missing:
        present = [f"{name}={environment[name]}" for name in needed if name in environment]
        raise LaunchError(
            f"the environment has {', '.join(present)} but not {', '.join(missing)}. Start with "
            "`torchrun --nproc_per_node=N -m overt.train ...`, which sets all of them, or unset "
            "the ones that are there to run in one process."
        )
    rank, world_size, local_rank = (_integer(environment, name) for name in needed[:3])
    local_world_size = _integer(environment, "LOCAL_WORLD_SIZE", default=max(local_rank + 1, 1))
    return Launch(
        rank,
        world_size,
        local_rank,
        local_world_size,
        "torchrun",
        environment["MASTER_ADDR"],
        _integer(environment, "MASTER_PORT"),
    )


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    return _integer(
        environment, "SLURM_STEP_NUM_TASKS", default=_integer(environment, "SLURM_NTASKS", 1)
    )


def _read_slurm(environment: Mapping[str, str]) -> Launch:
    tasks = _slurm_tasks(environment)
    if "SLURM_STEP_ID" not in environment:
        raise LaunchError(
            f"this process runs in a Slurm job of {tasks} tasks but was not started by srun, so "
            f"the other {tasks - 1} do not exist and it would wait for them forever. Start it "
            "with `srun python -m overt.train ...`, or ask for one task (--ntasks=1)."
        )
    rank = _integer(environment, "SLURM_PROCID")
    local_rank = _integer(environment, "SLURM_LOCALID", default=0)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get(
        "SLURM_TASKS_PER_NODE", ""
    )
    counts = _tasks_per_node(per_node)
    if counts and sum(counts) != tasks:
        raise LaunchError(
            f"Slurm says {tasks} tasks in all but {per_node!r} tasks per node, which makes "
            f"{sum(counts)}. Ask for --nodes=N and --ntasks-per-node=M only, and let Slurm "
            "multiply."
        )
    node = _integer(environment, "SLURM_NODEID", default=0)
    local_world_size = counts[node] if node < len(counts) else max(local_rank + 1, 1)
    # The port follows from the job id, so that two jobs on one host do not meet.
    job = _integer(environment, "SLURM_JOB_ID", default=0)
    return Launch(
        rank,
        tasks,
        local_rank,
        local_world_size,
        "Slurm",
        environment.get("MASTER_ADDR") or first_host(nodes) or "127.0.0.1",
        _integer(environment, "MASTER_PORT", default=20000 + job % 20000),
    )


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's `2(x3),1` to [2, 2, 2, 1]; empty where it cannot be read."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        # No cluster has a million nodes, and a list of more would not fit into memory.
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(node_list: str) -> str:
    """The first host of a Slurm node list: `gpu[007-012,20],cpu1` gives `gpu007`."""
    match = re.match(r"([^,\[]*)(?:\[([^\]]*)\]([^,]*))?", node_list.strip())
    if match is None:
        return ""
    prefix, ranges, suffix = match.groups()
    first = re.split(r"[,-]", ranges)[0] if ranges else ""
    return f"{prefix}{first}{suffix or ''}"


def _integer(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise LaunchError(
            f"the environment variable {name}={text!r} is not a whole number; unset it, or start "
            "with torchrun or srun, which set it."
        ) from None
