"""Two network hosts: a link that is cut ends the training with an error, and it goes on after."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gate import Gate
from slurm_cluster import PATIENCE_SECONDS, wait_for
from toy_runs import HERE, TOY, same_bits, train_toy, weights
from two_hosts import NAMES, Hosts

pytest_plugins = ("cluster_fixtures",)

TIMEOUT_SECONDS = 12
LAST_STEP = 12


def command(folder: Path) -> list[str]:
    """torchrun as a user would start it on each host."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=cut"),
        *("--max-restarts=3", "-m", "overt.train", "--package", str(TOY)),
        *("--package", str(HERE / "cluster" / "gated_toy"), "recipe=gated"),
        *(f"output_dir={folder}", f"training.timeout_minutes={TIMEOUT_SECONDS / 60}"),
    ]


@pytest.mark.long
def test_a_cut_link_ends_the_training_in_time_and_a_healed_one_lets_it_go_on(
    hosts: Hosts, gate: Gate, run_processes: Callable[..., list[object]], tmp_path: Path
) -> None:
    run_processes(train_toy, 2, tmp_path / "undisturbed")
    logs = {name: tmp_path / f"{name}.log" for name in NAMES}
    environment = {**os.environ, **gate.environment, "OMP_NUM_THREADS": "1"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # as docs/launch.md says
    agents = []
    for name, log in logs.items():
        with log.open("wb") as file:
            started = subprocess.Popen(
                hosts.on(name, command(tmp_path)), stdout=file, stderr=file, env=environment
            )
        agents.append(started)
    gate.wait_for(2)
    hosts.cut("node2")
    gate.open()
    for name, log in logs.items():  # not after the 30 minutes that are the default
        wait_for(
            f"an error on {name}",
            lambda log=log: "training.timeout_minutes=0.2" in log.read_text(),
            TIMEOUT_SECONDS + PATIENCE_SECONDS / 2,
        )
    assert not (tmp_path / "gated" / "checkpoints" / f"step_{LAST_STEP:08d}").exists()
    hosts.heal("node2")
    codes = [agent.wait(PATIENCE_SECONDS) for agent in agents]
    assert codes == [0, 0], logs["node1"].read_text()
    assert "step_00000006 at step 6" in "".join(log.read_text() for log in logs.values())
    ended = weights(tmp_path / "gated", LAST_STEP)
    assert same_bits(ended, weights(tmp_path / "undisturbed" / "toy", LAST_STEP))
