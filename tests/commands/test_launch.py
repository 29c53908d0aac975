"""overt/commands/launch.py: all is checked before anything is submitted, written or started."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from toy_runs import TOY

from overt.cli import main
from overt.config.overrides import parse_override
from overt.tools.launch import local
from overt.train import main as train

PACKAGE = ["--package", str(TOY)]
CPU = ["--gpus", "0"]
TOY_RUN = [*PACKAGE, "recipe=toy"]


@pytest.fixture(autouse=True)
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that writes down its words and gives out the numbers 1, 2, ..."""
    programs, words = tmp_path / "bin", tmp_path / "submitted"
    programs.mkdir()
    program = programs / "sbatch"
    program.write_text(f'#!/bin/bash\necho "$@" >> {words}; wc -l < {words}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return words


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["launch", *words]) == 0
    return capsys.readouterr().out


def test_a_job_is_submitted_and_its_log_named(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(["slurm", *CPU, "--nodes", "2", *TOY_RUN], capsys)
    script = tmp_path / "runs" / "toy" / "slurm" / "toy.sh"
    assert "job 1: toy on 2 node(s)" in text
    assert f"{tmp_path}/runs/toy/slurm/1.log" in text
    assert sbatch.read_text() == f"--parsable {script}\n"
    printed = shown(["slurm", *CPU, "--nodes", "2", *TOY_RUN, "--print"], capsys)
    assert printed == script.read_text()


def test_options_win_over_the_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partition: gpu\naccount: lab\n")
    options = ["--site", str(site), "--partition", "night", "--module", "cuda", "--env", "A=b=c"]
    text = shown(["slurm", *CPU, *options, *TOY_RUN, "--print"], capsys)
    for line in ("--partition=night", "--account=lab", "module load cuda", "export A=b=c"):
        assert line in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*CPU, *TOY_RUN, "training.num_stps=1"], "did you mean training.num_steps?"),
        (TOY_RUN, "give the number of GPUs per node: --gpus N"),
        (["--gpus", "8", *TOY_RUN], "training.device=cpu would leave 1 x 8 GPU(s) idle"),
        (["--gpus", "8", "--processes", "9", *TOY_RUN], "share a GPU"),
        ([*CPU, "--processes", "3", *TOY_RUN, "training.global_batch_size=32"], "use 30 or 36"),
        ([*CPU, "--env", "A", *TOY_RUN], "--env A: write NAME=VALUE"),
        ([*CPU, "--time", "1", *TOY_RUN], "is not below the time limit"),
        ([*CPU, *TOY_RUN, "optimizer.lr=0.1,0.2"], "add -m"),
        ([*CPU, "-m", *TOY_RUN, "optimizer.lr=0.1,-1"], "optimizer.lr=-1"),
        ([*CPU, "--stages", "nowhere.yaml"], "no such file of stages"),
        ([*CPU, "--stages", "x", "-m"], "--stages takes KEY=VALUE"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(
    words: list[str], expected: str, sbatch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "slurm", *words]) == 2
    assert expected in capsys.readouterr().err
    assert not sbatch.exists()


def test_a_sweep_trains_the_runs_that_a_local_sweep_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words and so the same folders as `overt train -m`."""
    words = [
        "-m",
        *TOY_RUN,
        "exp_name=a/b",
        "optimizer.lr=0.1,0.2",
        "logging.wandb_project=x/y,x_y",
    ]
    text = shown(["slurm", *CPU, *words, "--print"], capsys)
    assert "--array=0-3" in text
    started: list[list[str]] = []

    class Child:
        def __init__(self, command: list[str], **options: object) -> None:
            started.append(command)
            self.returncode, self.send_signal = 0, None

        def __enter__(self) -> "Child":
            return self

        def __exit__(self, *error: object) -> None: ...

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Child)
    assert train(words) == 0
    names = [word for command in started for word in command if word.startswith("exp_name='")]
    assert len(set(names)) == 4
    for name in names:
        label = name.removeprefix("exp_name='").removesuffix("'")
        assert f"run={tmp_path}/runs/{label}\n" in text or f"run='{tmp_path}/runs/{label}'" in text


def test_an_array_takes_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", *TOY_RUN, 'exp_name="a\'b"', "training.num_steps=1,2"]
    lines = shown(["slurm", *CPU, *words, "--print"], capsys).splitlines()
    words = [shlex.split(line)[0] for line in lines if line.strip().startswith("'exp_name=")]
    names = [parse_override(word).value() for word in words]
    assert names[1::2] == ["a'b/training.num_steps=1", "a'b/training.num_steps=2"]


STAGES = """\
output_dir: runs/chain
stages:
  - {{name: one, recipe: toy, packages: [{toy}]}}
  - {{name: two, recipe: toy, packages: [{toy}], nodes: 3, gpus: 2,
      overrides: {{training.device: cuda}}, checkpoints: {{checkpoint.init_from: one latest}}}}
  - {{name: three, recipe: toy, packages: [{toy}], checkpoints: {{checkpoint.init_from: one}}}}
"""


def test_stages_are_submitted_with_their_dependencies(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stages.yaml").write_text(STAGES.format(toy=TOY))
    words = ["slurm", *CPU, "--nodes", "2", "--stages", "stages.yaml", "seed=5"]
    text = shown(words, capsys)
    assert "job 2: two on 3 node(s) x 2 GPU(s), after one" in text
    assert "job 3: three on 2 node(s) x 1 process(es) on the CPU, after one" in text
    first, second, third = (line.split() for line in sbatch.read_text().splitlines())
    assert first == ["--parsable", f"{tmp_path}/runs/chain/one/slurm/one.sh"]
    assert second[1] == third[1] == "--dependency=afterok:1"
    script = (tmp_path / "runs/chain/two/slurm/two.sh").read_text()
    assert "seed=5" in script
    assert "checkpoint.init_from=runs/chain/one/checkpoints/latest" in script


def test_stages_that_make_no_chain_are_refused_and_nothing_is_submitted(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STAGES.format(toy=TOY).replace("init_from: one}", "init_from: four}")
    (tmp_path / "stages.yaml").write_text(text)
    assert main(["launch", "slurm", *CPU, "--stages", "stages.yaml"]) == 2
    said = capsys.readouterr().err
    assert "stage three takes checkpoint.init_from from four, which is not an earlier stage" in said
    assert not sbatch.exists()


def test_a_detached_run_trains_and_its_status_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real one, to its end."""
    words = ["local", *CPU, *TOY_RUN, "training.num_steps=1", "--env", "OMP_NUM_THREADS=1"]
    text = shown(words, capsys)
    run = Path("runs/toy")
    assert f"overt launch local stop {run}" in text
    started = local.read(run)
    assert started is not None
    os.waitpid(started.pid, 0)
    assert main(["launch", "local", "status", str(run)]) == 3
    said = capsys.readouterr().out
    assert "has ended; last checkpoint step_00000001" in said
    assert main(["launch", "local", "stop", str(run)]) == 0


def test_a_running_one_is_told_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = local.start(tmp_path / "run", [sys.executable, "-c", "import time; time.sleep(600)"])
    assert main(["launch", "local", "status", str(tmp_path / "run")]) == 0
    assert f"process {started.pid} is training; no checkpoint yet" in capsys.readouterr().out
    assert main(["launch", "local", "stop", str(tmp_path / "run")]) == 0
    assert not local.is_running(started)
    assert main(["launch", "local", "status", str(tmp_path)]) == 1
    assert "nothing was started" in capsys.readouterr().err


def test_a_unit_is_printed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = ["systemd", *CPU, "--processes", "2", *TOY_RUN]
    printed = shown([*words, "--print"], capsys)
    assert not (tmp_path / "home").exists()
    assert "--nproc-per-node=2" in printed
    text = shown(words, capsys)
    unit = tmp_path / "home/.config/systemd/user/overt-toy.service"
    assert unit.read_text() == printed
    assert "systemctl --user enable --now overt-toy.service" in text


@pytest.mark.parametrize(
    ("backend", "option"),
    [("local", "--max-restarts"), ("systemd", "--max-restarts"), ("systemd", "--stop-seconds")],
)
def test_negative_counts_are_refused(
    backend: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They reached torchrun and systemd, which stopped at them or ignored them."""
    with pytest.raises(SystemExit) as ended:
        main(["launch", backend, *CPU, *TOY_RUN, "--print", option, "-1"])
    assert ended.value.code == 2
    assert f"{option}: -1 is not a whole number" in capsys.readouterr().err


def test_the_plan_of_stages_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stages.yaml").write_text(STAGES.format(toy=TOY))
    assert main(["stages", "stages.yaml", "--plan"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["nodes"], one["gpus"], one["after"]) for one in plan] == [
        ("one", 1, None, []), ("two", 3, 2, ["one"]), ("three", 1, None, ["one"]),
    ]  # fmt: skip
