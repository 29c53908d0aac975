"""Fixtures: a real Slurm of two nodes, two network hosts, and a gate that holds a training.

A test module takes them with `pytest_plugins = ("cluster_fixtures",)`.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gate import Gate
from slurm_cluster import PATIENCE_SECONDS, Cluster, wait_for, why_no_slurm
from two_hosts import Hosts, why_not


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate", step=7)


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The one that was brought up for all (`.ci/run`), else one of our own."""
    shared = os.environ.get("OVERT_TEST_CLUSTER")
    if shared:
        yield Cluster(Path(shared))
        return
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(f"no Slurm here: {reason}")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Slurm for this test alone, both nodes idle."""
    with (_cluster.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_for("idle nodes", _cluster.is_ready, PATIENCE_SECONDS)
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SLURM_CONF", str(_cluster.configuration))
        yield _cluster
        left = _cluster.ask("squeue", "-h", "-o", "%A").split()
        if left:  # of a test that failed
            _cluster.ask("scancel", "--full", "--signal=KILL", *left)
            _cluster.ask("scancel", *left)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two network hosts without Slurm."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no network hosts here: {reason}")
    hosts = Hosts(tmp_path / "net")
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()
