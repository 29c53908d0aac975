"""`overt doctor` under srun on a real Slurm: two nodes are examined as one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import PATIENCE_SECONDS, Cluster
from toy_runs import TOY

pytest_plugins = ("cluster_fixtures",)


def examined(cluster: Cluster, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings by name of one doctor on each of the two nodes."""
    srun = ["srun", "-N2", "--ntasks-per-node=1"]
    done = subprocess.run(
        [*srun, sys.executable, "-m", "overt", "doctor", "--device", "cpu", "--json", *words],
        env={**cluster.environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    print(done.stderr)  # shown where the test fails
    assert done.stdout
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_two_nodes_meet_and_share_clock_and_files(cluster: Cluster, tmp_path: Path) -> None:
    code, found = examined(cluster, "--folder", str(tmp_path))
    assert code == 0, found
    assert "2 processes on 2 host(s) (node1, node2) met at" in found["rendezvous"]["found"]
    assert found["clock"]["level"] == "OK"
    assert "between any two processes" in found["clock"]["found"]
    assert found["files"]["level"] != "FAIL"  # a busy disk may be called slow
    assert found["files"]["found"].startswith(f"{tmp_path}: rename and fsync work")
    assert "seen by all within" in found["files"]["found"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_run_that_cannot_be_split_fails_on_both_nodes(cluster: Cluster, tmp_path: Path) -> None:
    words = ["--package", str(TOY), "recipe=toy", f"output_dir={tmp_path}"]
    batch = ["training.batch_size=1", "training.global_batch_size=3"]
    code, found = examined(cluster, *words, *batch)
    assert code == 1
    assert found["batch"]["level"] == "FAIL"
    assert "training.global_batch_size=3" in found["batch"]["found"]
    assert found["rendezvous"]["level"] == "OK"
