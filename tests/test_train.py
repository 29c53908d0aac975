"""overt/train.py: one run, a sweep of runs, and runs of several processes by torchrun."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from small_recipes import SMALL_BLADE, SMALL_HJEPA, Small
from toy_runs import TOY, losses_by_step, train_toy

from overt.config import load
from overt.health.preemption import StopSignal
from overt.train import main, run_one

SHORT = ["recipe=toy", "training.num_steps=2"]
PACKAGE = ["--package", str(TOY)]


def test_a_run_ends_with_code_0(tmp_path: Path) -> None:
    assert main([*PACKAGE, *SHORT, f"output_dir={tmp_path}", "exp_name=mine"]) == 0
    assert losses_by_step(tmp_path / "mine").keys() == {1, 2}


@pytest.mark.parametrize(
    ("override", "code", "expected"),
    [
        ("training.num_stps=1", 2, "did you mean training.num_steps?"),
        ("data.broken_sample=3", 1, "DataError: sample 3 of the training data cannot be read"),
        ("data.samples=0", 1, "DataError: the training data set is empty"),
        ("optimizer.lr=0.01,0.02", 2, "add -m"),
    ],
)
def test_a_failed_run_ends_with_its_code_and_the_remedy(
    override: str, code: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PACKAGE, "recipe=toy", f"output_dir={tmp_path}", override]) == code
    shown = capsys.readouterr()
    assert expected in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("output_dir", ["FILE", "FILE/below", "x" * 300])
def test_a_folder_that_cannot_be_made_is_explained(
    output_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    folder = output_dir.replace("FILE", str(tmp_path / "file"))
    assert main([*PACKAGE, "recipe=toy", f"output_dir={folder}"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("LaunchError: the run folder")
    assert "Traceback" not in shown


# --- sweeps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "small", [SMALL_HJEPA, SMALL_BLADE["depthnet"]], ids=lambda small: small.name
)
@pytest.mark.parametrize("root", ["FILE/below", "x" * 300])
def test_a_folder_that_cannot_take_data_is_explained(
    root: str, small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a folder without permission to write, which ended in a traceback."""
    (tmp_path / "file").write_text("")
    folder = root.replace("FILE", str(tmp_path / "file"))
    words = [*small.all_words(tmp_path), f"data.root={folder}"]
    assert main(words) == 1
    shown = capsys.readouterr().err
    assert "Check the path, its permissions" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("option", ["--config", "--package"])
def test_a_name_that_no_file_can_have_is_explained(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipe=hjepa_tiny", option, "x" * 300]) == 1
    assert "Check the path, its permissions" in capsys.readouterr().err


def test_the_traceback_of_a_file_that_cannot_be_opened_is_there_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OVERT_TRACEBACK", "1")
    with pytest.raises(OSError, match="too long"):
        main(["recipe=hjepa_tiny", "--config", "x" * 300])


def train_in_this_process(command: list[str], stop: object) -> int:
    """What a run of a sweep does, without importing torch anew."""
    try:
        return main(command[command.index("overt.train") + 1 :])
    except ValueError:
        traceback.print_exc()
        return 1


@pytest.mark.parametrize("separate", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_sweep_trains_one_run_for_each_value(
    separate: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first is refused by torch's own check: the other runs, and the code says it."""
    if not separate:
        monkeypatch.setattr("overt.train.run_one", train_in_this_process)
    epsilons = "optimizer.arguments.eps=-1.0,1e-4"
    assert main(["-m", *PACKAGE, *SHORT, f"output_dir={tmp_path}", epsilons]) == 1
    runs = {path.name: path for path in (tmp_path / "toy").iterdir()}
    values = {
        name: OmegaConf.load(path / "config.yaml").optimizer.arguments.eps
        for name, path in runs.items()
        if (path / "metrics.jsonl").exists()
    }
    assert values == {"optimizer.arguments.eps=0.0001": 1e-4}
    assert all(losses_by_step(runs[name]).keys() == {1, 2} for name in values)
    text = capfd.readouterr().err
    assert "Invalid epsilon" in text
    assert "1 of 2 runs failed" in text


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What a sweep would start, without starting it."""
    started: list[list[str]] = []

    def start(command: list[str], stop: object) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr("overt.train.run_one", start)
    return started


def test_a_sweep_is_checked_before_its_first_run(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = f"logging.wandb_project=a,{'b' * 180}"  # its folder's name, with the key
    for bad in (
        "optimizer.lr=0.01,-1",
        "training.num_steps",
        "optimizer.lr=interval(0,1)",
        too_long,
    ):
        assert main(["-m", *PACKAGE, "recipe=toy", bad]) == 2
        assert "ConfigError: " in capsys.readouterr().err
    assert commands == []


def test_every_run_of_a_sweep_has_a_folder_of_its_own(commands: list[list[str]]) -> None:
    overrides = ["exp_name=mine", "optimizer.lr=0.01,0.02", "optimizer.arguments.betas=[0,0],[0,1]"]
    assert main(["-m", *PACKAGE, "recipe=toy", *overrides]) == 0
    names = [command[command.index("--package") - 1] for command in commands]
    assert len(set(names)) == 4
    assert names[0].startswith("exp_name='mine/optimizer.lr=0.01,optimizer.arguments.betas=")


@pytest.mark.parametrize("name", ["a'b", "a b", "x(1)"])
def test_a_sweep_with_any_name_reaches_its_runs(name: str, commands: list[list[str]]) -> None:
    words = ["recipe=toy", f'exp_name="{name}"', "training.num_steps=1,2"]
    assert main(["-m", *PACKAGE, *words]) == 0
    names = []
    for command in commands:
        start = command.index("overt.train") + 1
        overrides = command[start : command.index("--package")]
        names.append(load(overrides, packages=[str(TOY)]).exp_name)
    assert names == [f"{name}/training.num_steps=1", f"{name}/training.num_steps=2"]


def test_values_that_differ_only_in_a_slash_are_trained_in_two_folders(
    commands: list[list[str]],
) -> None:
    assert main(["-m", *PACKAGE, "recipe=toy", "logging.wandb_project=x/y,x_y"]) == 0
    assert len({command[command.index("--package") - 1] for command in commands}) == 2


# --- several processes ----------------------------------------------------------------------------


def torchrun(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    words = ["-m", "overt.train", *PACKAGE, *SHORT, f"output_dir={folder}", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *words], capture_output=True, text=True, env=environment)


def test_torchrun(tmp_path: Path) -> None:
    sizes = ["training.batch_size=null", "training.global_batch_size=4"]
    done = torchrun(tmp_path, *sizes)
    assert done.returncode == 0, done.stderr
    assert "2 per process x 2 process(es) x 1 accumulated = 4" in done.stdout
    assert done.stdout.count("step 2/2") == 1  # one of the two speaks
    train_toy(tmp_path / "alone", *SHORT, *sizes)
    alone = losses_by_step(tmp_path / "alone/toy")
    assert losses_by_step(tmp_path / "toy") == pytest.approx(alone, rel=1e-6)


@pytest.mark.long
def test_torchrun_with_a_refused_configuration(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "training.batch_size=null", "training.global_batch_size=5")
    assert done.returncode != 0
    assert "ConfigError: training.global_batch_size=5 is not a multiple" in done.stderr
    assert "use 4 or 6" in done.stderr
    assert not (tmp_path / "toy/metrics.jsonl").exists()


def test_an_interrupted_command_waits_for_the_run_that_saves() -> None:
    """A terminal tells both; the run takes a while, then ends with its own code."""
    program = "import os, signal, sys; os.kill(os.getppid(), signal.SIGINT); sys.exit(130)"
    with StopSignal() as stop:
        assert run_one([sys.executable, "-c", program], stop) == 130


def test_an_interruption_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(trainer: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("overt.engine.trainer.Trainer.train", interrupted)
    words = ["recipe=toy", f"output_dir={tmp_path}", "--package", str(TOY)]
    assert main(words) == 130
    assert (
        "resumes from the last checkpoint; without one, it starts over" in capsys.readouterr().err
    )
