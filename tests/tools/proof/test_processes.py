"""overt/tools/proof/processes.py: groups end by themselves or by the deadline, and say how."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from overt.tools.proof.processes import Group


def say_and_leave(code: int) -> int:
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} in {os.environ['PLACE']}")
    return code


def sleep_unless(failing: bool) -> int:
    if failing:
        return 3
    time.sleep(600)
    return 0


def meet() -> int:
    """Join the process group through the parent's store and add up ranks."""
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    total = torch.tensor(float(os.environ["RANK"]))
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
    return int(total)


def group(function: Any, arguments: list[tuple[Any, ...]], folder: Path) -> Group:
    return Group(function, arguments, folder / "log", {"PLACE": "here"})


def test_codes_are_by_rank_and_all_output_is_in_one_file(tmp_path: Path) -> None:
    ended = group(say_and_leave, [(0,), (5,)], tmp_path).wait(120)
    assert (ended.codes, ended.late) == ([0, 5], [])
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines == ["rank 0 of 2 in here", "rank 1 of 2 in here"]


def test_the_processes_meet_through_the_parent(tmp_path: Path) -> None:
    assert group(meet, [(), (), ()], tmp_path).wait(120).codes == [3, 3, 3]


def test_whoever_is_late_is_killed_and_named(tmp_path: Path) -> None:
    processes = group(sleep_unless, [(True,), (False,)], tmp_path)
    ended = processes.wait(120, grace=0.1)  # one has failed: the other has no time left
    assert ended.codes == [3, -signal.SIGKILL]
    assert ended.late == [1]
    assert ended.seconds < 120


def test_signals_reach_one_rank_and_none_that_has_ended(tmp_path: Path) -> None:
    processes = group(sleep_unless, [(False,), (False,)], tmp_path)
    assert processes.send(0, signal.SIGTERM)
    ended = processes.wait(120, grace=0.1)
    assert ended.codes == [-signal.SIGTERM, -signal.SIGKILL]
    assert not processes.send(0, signal.SIGTERM)
