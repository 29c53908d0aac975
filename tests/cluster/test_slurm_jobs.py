"""`overt launch slurm` on a real Slurm: signals, requeues, lost nodes, stages, arrays."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gate import Gate
from slurm_cluster import PATIENCE_SECONDS, Cluster, wait_for
from toy_runs import HERE, TOY, same_bits, train_toy, weights

from overt.cli import main

pytest_plugins = ("cluster_fixtures",)
PACKAGES = ["--package", str(TOY), "--package", str(HERE / "cluster" / "gated_toy")]
LAST_STEP = 12
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture
def launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """`overt launch slurm` with these words; the numbers of the jobs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def launch(*words: str) -> list[str]:
        common = ["--gpus", "0", "--time", "10", "--signal-seconds", "10"]
        assert main(["launch", "slurm", *common, *words]) == 0
        return re.findall(r"^job (\d+)", capsys.readouterr().out, re.MULTILINE)

    return launch


def gated(gate: Gate, folder: Path) -> list[str]:
    """The words of a gated run below `folder`."""
    variables = [f"{name}={value}" for name, value in gate.environment.items()]
    options = [word for one in variables for word in ("--env", one)]
    return [*options, *PACKAGES, "recipe=gated", f"output_dir={folder}"]


def ends(cluster: Cluster, job: str) -> dict[str, str]:
    """The fields of a job once it has ended for good."""
    wait_for(
        f"the end of job {job}",
        lambda: cluster.job(job).get("JobState") in ENDED,
        PATIENCE_SECONDS,
    )
    return cluster.job(job)


def log_of(run: Path) -> str:
    (log,) = (run / "slurm").glob("*.log")
    return log.read_text()


@pytest.fixture
def undisturbed(run_processes: Callable[..., list[object]], tmp_path: Path) -> Path:
    """The same training on two processes, which nothing happens to."""
    folder = tmp_path / "undisturbed"
    run_processes(train_toy, 2, folder)
    return folder / "toy"


@pytest.mark.long
def test_a_signalled_job_is_requeued_under_its_number_and_ends_with_the_same_weights(
    cluster: Cluster, launch: Callable[..., list[str]], gate: Gate, undisturbed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """One torchrun on each of two nodes, loader processes, saves in the background."""
    (job,) = launch(
        "--nodes", "2", *gated(gate, tmp_path), "training.num_workers=1",
        "checkpoint.background=true", "checkpoint.every_steps=100",
    )  # fmt: skip
    gate.wait_for(2)
    cluster.ask("scancel", "--signal=USR1", job)  # as Slurm does before the time limit
    gate.open()
    fields = ends(cluster, job)
    log = log_of(tmp_path / "gated")
    assert (fields["JobState"], fields["Restarts"], fields["ExitCode"]) == ("COMPLETED", "1", "0:0")
    saved = int(re.search(r"requeued from step (\d+)", log)[1])
    assert 7 < saved < LAST_STEP
    assert f"session 1: from step {saved}" in log
    assert same_bits(weights(tmp_path / "gated", LAST_STEP), weights(undisturbed, LAST_STEP))


@pytest.mark.long
def test_a_killed_node_is_survived(
    cluster: Cluster, launch: Callable[..., list[str]], gate: Gate, undisturbed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The node is back before Slurm misses it: the training itself notices, and is requeued."""
    (job,) = launch("--nodes", "2", "--tasks-per", "gpu", *gated(gate, tmp_path))
    gate.wait_for(2)
    cluster.kill("node2")
    cluster.start_node("node2")
    gate.open()
    fields = ends(cluster, job)
    log = log_of(tmp_path / "gated")
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), log
    assert "requeued from step 6" in log
    assert same_bits(weights(tmp_path / "gated", LAST_STEP), weights(undisturbed, LAST_STEP))


@pytest.mark.long
def test_a_preempting_job_gets_the_nodes_at_once_and_the_run_goes_on_after_it(
    cluster: Cluster, launch: Callable[..., list[str]], gate: Gate, undisturbed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    (job,) = launch("--nodes", "2", "--tasks-per", "gpu", *gated(gate, tmp_path))
    gate.wait_for(2)
    other = cluster.ask(
        "sbatch",
        "--parsable",
        "-p",
        "high",
        "-N2",
        "--exclusive",
        "-o",
        "/dev/null",
        "--wrap",
        "true",
    ).strip()
    wait_for("the notice", lambda: cluster.job(job).get("PreemptTime") != "None", 30)
    gate.open()
    assert ends(cluster, other)["JobState"] == "COMPLETED"
    fields = ends(cluster, job)
    log = log_of(tmp_path / "gated")
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), log
    assert "SIGTERM asked this run to stop" in log
    assert same_bits(weights(tmp_path / "gated", LAST_STEP), weights(undisturbed, LAST_STEP))


def test_a_cancelled_job_stays_cancelled(
    cluster: Cluster, launch: Callable[..., list[str]], gate: Gate, tmp_path: Path
) -> None:
    (job,) = launch("--tasks-per", "gpu", *gated(gate, tmp_path))
    gate.wait_for(1)
    cluster.ask("scancel", job)
    gate.open()
    fields = ends(cluster, job)
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0")
    wait_for("idle nodes", cluster.is_ready, PATIENCE_SECONDS)
    assert "requeued from" not in log_of(tmp_path / "gated")


STAGES = """\
output_dir: {folder}
stages:
  - name: first
    recipe: toy
    packages: [{toy}]
    overrides: {{training.num_steps: 2, checkpoint.every_steps: 1}}
  - name: second
    recipe: toy
    packages: [{toy}]
    overrides: {{training.num_steps: 1}}
    checkpoints: {{checkpoint.init_from: first latest}}
"""


@pytest.mark.long
def test_stages_run_as_dependent_jobs(
    cluster: Cluster, launch: Callable[..., list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text(STAGES.format(folder=tmp_path, toy=TOY))
    first, second = launch("--tasks-per", "gpu", "--stages", str(file))
    assert cluster.job(second)["Dependency"].startswith(f"afterok:{first}")
    assert ends(cluster, second)["JobState"] == "COMPLETED"
    assert cluster.job(first)["JobState"] == "COMPLETED"
    assert cluster.job(first)["EndTime"] <= cluster.job(second)["StartTime"]
    assert (tmp_path / "second" / "checkpoints" / "step_00000001").is_dir()


@pytest.mark.long
def test_a_sweep_runs_as_a_job_array(
    cluster: Cluster, launch: Callable[..., list[str]], tmp_path: Path
) -> None:
    words = [*PACKAGES, "recipe=toy", f"output_dir={tmp_path}", "training.num_steps=1"]
    (job,) = launch("--tasks-per", "gpu", "-m", *words, "optimizer.lr=0.01,0.02")
    for task in ("0", "1"):
        assert ends(cluster, f"{job}_{task}")["JobState"] == "COMPLETED"
    made = {path.parents[1].name for path in tmp_path.glob("toy/*/checkpoints/step_00000001")}
    assert made == {"optimizer.lr=0.01", "optimizer.lr=0.02"}
