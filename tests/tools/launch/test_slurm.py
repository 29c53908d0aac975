"""overt/tools/launch/slurm.py: what a batch script says, and how it decides, run by a real bash."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.tools.launch.settings import read_settings
from overt.tools.launch.size import Size
from overt.tools.launch.slurm import Job, Run, render, submit

TWO_NODES = Size(2, 8, 8)


def make_job(folder: Path, size: Size = TWO_NODES, runs: int = 1, **options: Any) -> Job:
    each = [Run(folder / f"run{n}", ["recipe=toy", f"seed={n}"]) for n in range(runs)]
    asked = read_settings(None, options)
    return Job("toy", each, size, asked, folder / "run0" / "slurm", folder)


def header(script: str) -> list[str]:
    return re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)


def parses(script: str) -> bool:
    return subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


SHAPES = [
    {},
    {"tasks_per": "gpu"},
    {"container": "image.sif"},
    {"container": "image.sif", "container_runtime": "pyxis", "tasks_per": "gpu"},
    {"modules": ["cuda/12.4"], "env": {"A": "b c"}, "setup": ["source x"], "cpus_per_process": 4},
]


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("runs", [1, 3])
def test_every_script_is_valid_bash(options: dict[str, Any], runs: int, tmp_path: Path) -> None:
    assert parses(render(make_job(tmp_path, runs=runs, **options)))


@settings(max_examples=30, deadline=None)
@given(words=st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)))
def test_words_reach_the_training_as_they_are(words: list[str]) -> None:
    """Quotes, dollars, newlines and stars included."""
    job = Job("toy", [Run(Path("/r"), words)], Size(1, 1, 1), read_settings(None, {}),
              Path("/r"), Path("/"))  # fmt: skip
    lines = render(job)
    chosen = lines[lines.index("words=(") : lines.index("\n\n# A task of an array")]
    program = chosen + '\nfor word in "${words[@]}"; do printf "%s\\0" "$word"; done'
    shown = subprocess.run(["bash", "-c", program], capture_output=True, check=True).stdout
    assert shown.decode().split("\0")[:-1] == words


def test_the_header_asks_for_what_was_said(tmp_path: Path) -> None:
    lines = header(
        render(make_job(tmp_path, time="2-0", partition="gpu", account="me", sbatch=["--mem=0"]))
    )
    for line in (
        "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=2-0", "--partition=gpu",
        "--account=me", "--mem=0", "--signal=USR1@120", "--requeue", "--open-mode=append",
        f"--output={tmp_path}/run0/slurm/%j.log",
    ):  # fmt: skip
        assert line in lines
    assert not [line for line in lines if line.startswith(("--qos", "--array", "--cpus"))]


def test_one_task_per_node_runs_torchrun_that_forwards_the_signal(tmp_path: Path) -> None:
    script = render(make_job(tmp_path, signal_seconds=300, max_restarts=5))
    assert "--ntasks-per-node=1" in header(script)
    for words in (
        "srun --kill-on-bad-exit=1", "-m overt.tools.launch.agent", "--nnodes=2 --nproc-per-node=8",
        "--rdzv-backend=c10d", "--max-restarts=5", "--shutdown-timeout=300",
    ):  # fmt: skip
        assert words in script
    (signals,) = re.findall(r"--signals-to-handle=(\S+)", script)
    assert {"SIGTERM", "SIGUSR1"} <= set(signals.split(","))
    # A session has a meeting of its own: what is left of the one before cannot join.
    assert '--rdzv-id="$job.$session"' in script


def test_one_task_per_gpu_runs_no_torchrun(tmp_path: Path) -> None:
    script = render(make_job(tmp_path, tasks_per="gpu", cpus_per_process=6))
    assert {"--ntasks-per-node=8", "--cpus-per-task=6"} <= set(header(script))
    assert "overt.tools.launch.agent" not in script
    assert "-m overt.tools.launch.worker" in script


def test_a_task_of_a_node_gets_the_cores_of_all_its_processes(tmp_path: Path) -> None:
    script = render(make_job(tmp_path, cpus_per_process=6))
    assert "--cpus-per-task=48" in header(script)
    assert '--cpus-per-task="$SLURM_CPUS_PER_TASK"' in script


def test_the_cpu_asks_for_no_gpus(tmp_path: Path) -> None:
    script = render(make_job(tmp_path, Size(1, 0, 4)))
    assert not [line for line in header(script) if line.startswith("--gpus")]
    assert "--nproc-per-node=4" in script


def test_containers_see_the_run(tmp_path: Path) -> None:
    apptainer = render(make_job(tmp_path, container="a b.sif", mounts=["/data"]))
    assert re.search(rf"apptainer exec --nv --bind /data .*--bind {tmp_path}/run0", apptainer)
    assert "'a b.sif' \\\n  python3 -m overt.tools.launch.agent" in apptainer
    pyxis = render(make_job(tmp_path, container="x", container_runtime="pyxis", mounts=["/d:/e"]))
    assert f"--container-mounts=/d:/e,{tmp_path}:{tmp_path}" in pyxis
    assert "apptainer" not in pyxis


# --- the decisions, with a made-up Slurm ----------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., tuple[int, str, list[str]]]:
    """Run a job's script: its exit code, what it said, and which jobs it requeued.

    srun is a shell function's stand-in: `training` is the bash that it runs.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    requeued = tmp_path / "requeued"
    (programs / "scontrol").write_text(
        '#!/bin/bash\ncase "$*" in\n'
        "  *hostnames*) echo node1;;\n"
        '  *"show job"*) echo "JobId=7 JobState=${STATE:-RUNNING} x";;\n'
        f'  requeue*) echo "$2" >> {requeued};;\nesac\n'
    )
    (programs / "srun").write_text('#!/bin/bash\neval "$TRAINING"\n')
    for program in programs.iterdir():
        program.chmod(0o755)

    def run(job: Job, training: str, **variables: str) -> tuple[int, str, list[str]]:
        requeued.unlink(missing_ok=True)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node1",
            "TRAINING": training,
            **variables,
        }
        done = subprocess.run(
            ["bash"], input=render(job), text=True, capture_output=True, env=environment,
            cwd=tmp_path, timeout=240, check=False,
        )  # fmt: skip
        names = requeued.read_text().split() if requeued.exists() else []
        return done.returncode, done.stdout, names

    return run


def saves(folder: Path, step: int, serial: int | None = None) -> str:
    checkpoint = folder / f"checkpoints/step_{step:08d}"
    made = f"mkdir -p {checkpoint}; "
    if serial is None:
        return made
    manifest = shlex.quote(json.dumps({"format": 1, "serial": serial, "step": step}, indent=1))
    return made + f"echo {manifest} > {checkpoint}/manifest.json; "


def leaves_note(folder: Path, job: str = "7", number: int = 0) -> str:
    notes = folder / "slurm" / f"{job}.{number}.stopped"
    return f"mkdir -p {notes}; touch {notes}/0.0; "


Session = Callable[..., tuple[int, str, list[str]]]


def test_a_finished_run_ends_the_job(session: Session, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert session(job, saves(tmp_path / "run0", 9) + "exit 0")[::2] == (0, [])


@pytest.mark.parametrize("code", [0, 1, 137, 143])
def test_a_note_means_requeue_whatever_the_code(
    code: int, session: Session, tmp_path: Path
) -> None:
    run = tmp_path / "run0"
    training = saves(run, 9) + leaves_note(run) + f"exit {code}"
    ended, said, names = session(make_job(tmp_path), training)
    assert (ended, names) == (0, ["7"])
    assert "exit code 85 at step 9" in said
    assert not list((run / "slurm").glob("*.stopped"))


def test_a_failure_after_progress_is_requeued_and_one_without_is_not(
    session: Session, tmp_path: Path
) -> None:
    job, run = make_job(tmp_path), tmp_path / "run0"
    assert session(job, saves(run, 8) + "exit 1")[::2] == (0, ["7"])
    ended, said, names = session(job, saves(run, 8) + "exit 1", SLURM_RESTART_COUNT="1")
    assert (ended, names) == (1, [])
    assert "failed before it saved anything new" in said


def test_a_restart_without_progress_stops_the_job(session: Session, tmp_path: Path) -> None:
    job, run = make_job(tmp_path), tmp_path / "run0"
    first = session(job, saves(run, 8) + leaves_note(run))
    assert first[2] == ["7"]
    for number, expected in ((1, ["7"]), (2, [])):
        training = leaves_note(run, number=number)
        ended, said, names = session(job, training, SLURM_RESTART_COUNT=str(number))
        assert names == expected
    assert ended == 85
    assert "2 sessions in a row saved nothing new: not requeued" in said


def test_progress_forgives_an_earlier_session(session: Session, tmp_path: Path) -> None:
    job, run = make_job(tmp_path), tmp_path / "run0"
    for number in range(6):
        training = leaves_note(run, number=number) + (saves(run, number) if number % 2 else "")
        assert session(job, training, SLURM_RESTART_COUNT=str(number))[2] == ["7"]


def test_a_run_that_went_back_to_an_earlier_step_makes_progress(
    session: Session, tmp_path: Path
) -> None:
    job, run = make_job(tmp_path), tmp_path / "run0"
    kept = saves(run, 4, 1) + saves(run, 50, 2)  # the best one, although training went back to 4
    for number, step in enumerate((8, 12, 16)):
        training = (kept if number == 0 else "") + saves(run, step, 3 + number)
        ended, said, names = session(job, training + "exit 1", SLURM_RESTART_COUNT=str(number))
        assert (ended, names) == (0, ["7"])
        assert f"requeued from step {step}" in said
    # The same step again is none, nor is an older one after the newest was found broken.
    for training in (saves(run, 16, 6), f"mv {run}/checkpoints/step_00000016{{,.broken}}; "):
        ended, said, names = session(job, training + "exit 1", SLURM_RESTART_COUNT="3")
        assert (ended, names) == (1, [])


def test_requeues_are_counted(session: Session, tmp_path: Path) -> None:
    job, run = make_job(tmp_path, max_requeues=2), tmp_path / "run0"
    for number, expected in enumerate([["7"], ["7"], []]):
        training = saves(run, number + 1) + leaves_note(run, number=number)
        assert session(job, training, SLURM_RESTART_COUNT=str(number))[2] == expected


def test_a_cancelled_job_is_not_brought_back(session: Session, tmp_path: Path) -> None:
    run = tmp_path / "run0"
    training = saves(run, 8) + leaves_note(run)
    ended, said, names = session(make_job(tmp_path), training, STATE="COMPLETING")
    assert (ended, names) == (85, [])
    assert "Slurm has ended this job itself" in said


def test_only_whole_checkpoints_count_as_progress(session: Session, tmp_path: Path) -> None:
    run = tmp_path / "run0"
    training = "".join(
        f"mkdir -p {run}/checkpoints/{name}; "
        for name in ("step_00000009.broken", ".overt-writing-x-step_00000009", "step_00000008-1")
    )
    said = session(make_job(tmp_path), training + "exit 1")[1]
    assert "exit code 1 at step 8" in said  # decimal, although it begins with zeros


def test_a_task_of_an_array_trains_its_own_run_and_requeues_itself_only(
    session: Session, tmp_path: Path
) -> None:
    job, run = make_job(tmp_path, runs=3), tmp_path / "run1"
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "9"}
    training = 'echo "WORDS ${@: -1}"; ' + saves(run, 3) + leaves_note(run, "7_1")
    _, said, names = session(job, training, **variables)
    assert "WORDS seed=1" in said
    assert names == ["7_1"]
    assert "--array=0-2" in header(render(job))
    assert f"--output={tmp_path}/run0/slurm/%A_%a.log" in header(render(job))


def test_a_shell_that_is_terminated_waits_for_the_training(
    session: Session, tmp_path: Path
) -> None:
    """At the end of a time of grace Slurm sends SIGTERM to the batch shell too."""
    run = tmp_path / "run0"
    # The parent of srun is the batch shell; the training leaves its note after the signal.
    training = f"kill -TERM $PPID; sleep 0.3; {saves(run, 4)}{leaves_note(run)}"
    ended, said, names = session(make_job(tmp_path), training)
    assert (ended, names) == (0, ["7"])
    assert "exit code 85 at step 4" in said


# --- submitting -----------------------------------------------------------------------------------


def test_submitting_writes_the_script_and_hands_it_to_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/words; echo "12;cluster"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    job = make_job(tmp_path)
    assert submit(job, after=["3", "4"]) == "12"
    assert job.script.read_text() == render(job)
    words = (tmp_path / "words").read_text().split()
    assert words == [
        "--parsable", "--dependency=afterok:3:4", "--kill-on-invalid-dep=yes", str(job.script),
    ]  # fmt: skip
