"""Chains of trainings: fed by the best checkpoint, skipped when done, going on in the middle."""

import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from toy_runs import read_rows, train_toy, write_chain

from overt import cli
from overt.commands import stages
from overt.commands.stages import check_needs, local_command, main, progress_of
from overt.config import load
from overt.errors import CheckpointError, ConfigError, LaunchError, OvertError
from overt.tools.launch.stages import Stage, read_stages


def inside(stage: Stage, command: list[str]) -> None:
    """In place of a process of its own: train here."""
    words = [word for word in stage.overrides if not word.startswith(("recipe=", "output_dir="))]
    train_toy(stage.run_dir.parent, *words)


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "run", inside)


@pytest.mark.usefixtures("_here")
def test_a_chain_runs_and_hands_over_its_best_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_chain(tmp_path)
    assert main([str(path)]) == 0
    runs = tmp_path / "runs"
    config = OmegaConf.load(runs / "second" / "config.yaml")
    best = runs / "first" / "checkpoints" / "best"
    assert Path(config.checkpoint.init_from) == best
    assert config.seed == 7
    assert (best.resolve().parent / f"{best.resolve().name}.keep").exists()
    capsys.readouterr()
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["[1/2] first: done", "[2/2] second: done"]


@pytest.mark.usefixtures("_here")
def test_a_stage_that_was_interrupted_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = write_chain(tmp_path)
    stage = read_stages(path)[1]

    def die(stage: Stage, command: list[str]) -> None:
        if stage.name == "second":
            raise OvertError("killed")
        inside(stage, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "run", die)
        with pytest.raises(OvertError, match="killed"):
            main([str(path)])
    # As a process that was killed after its first checkpoint leaves it.
    words = [word for word in stage.overrides if not word.startswith(("recipe=", "output_dir="))]
    settings = "checkpoint.accept_changes=[training.num_steps]"
    train_toy(tmp_path / "runs", *words, "training.num_steps=3")
    before = read_rows(tmp_path / "runs" / "first")
    config = load(stage.overrides, packages=stage.packages)
    assert str(progress_of(stage, config)) == "at step 3 of 6"
    assert main([str(path), settings]) == 0
    assert read_rows(tmp_path / "runs" / "first") == before  # not run again
    events = (tmp_path / "runs" / "second" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in events if "train/loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_dry_run_shows_the_commands_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(write_chain(tmp_path)), "--dry-run", "--processes", "2"]) == 0
    shown = capsys.readouterr().out
    assert "[1/2] first: not started" in shown
    assert "--nproc_per_node=2 -m overt.train recipe=toy exp_name=first" in shown
    assert f"checkpoint.init_from={tmp_path}/runs/first/checkpoints/best" in shown
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_of_several_nodes_shows_what_each_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was an error that named Slurm, on the workstation where a plan is read."""
    file = Path(__file__).parents[2] / "examples" / "blade" / "stages.yaml"
    assert main([str(file), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "on each of 8 nodes:\n$ torchrun --nnodes=8 --nproc_per_node=8" in shown
    assert "-m overt.train recipe=blade_posenet" in shown
    with pytest.raises(LaunchError, match="needs 8 nodes"):
        main([str(file)])


@pytest.mark.usefixtures("_here")
def test_a_finished_stage_with_other_settings_is_not_taken_for_done(tmp_path: Path) -> None:
    main([str(write_chain(tmp_path))])
    with pytest.raises(ConfigError, match=r"(?s)first is done.*optimizer\.lr: 0\.01 -> 0\.5"):
        main([str(write_chain(tmp_path)), "optimizer.lr=0.5"])


@pytest.mark.usefixtures("_here")
def test_a_stage_that_patience_ended_is_done_until_it_gets_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def chain(*changes: str) -> list[str]:
        settings = ["training.num_steps=6", "training.evaluate_every_steps=1"]
        # The error falls from step to step, so the highest is the first.
        settings += ["checkpoint.mode=max", "checkpoint.every_steps=1", "training.patience=1"]
        assert main([str(write_chain(tmp_path, overrides=settings)), *changes]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith(("[1/2]", "[2/2]"))]

    def last_step() -> int:
        return max(row["step"] for row in read_rows(tmp_path / "runs" / "first"))

    assert chain() == ["[1/2] first: not started", "[2/2] second: not started"]
    assert last_step() == 2
    assert chain() == ["[1/2] first: done", "[2/2] second: done"]
    more = "training.patience=2"
    assert chain(more) == ["[1/2] first: at step 2 of 6", "[2/2] second: at step 2 of 6"]
    assert last_step() == 3
    longer = (more, "training.num_steps=7", "checkpoint.accept_changes=[training.num_steps]")
    assert chain(*longer) == ["[1/2] first: at step 3 of 7", "[2/2] second: at step 3 of 7"]
    assert last_step() == 4
    assert chain(*longer) == ["[1/2] first: done", "[2/2] second: done"]


@pytest.mark.usefixtures("_here")
def test_without_a_best_checkpoint_the_next_stage_is_refused(tmp_path: Path) -> None:
    path = write_chain(tmp_path, overrides=["training.num_steps=3", "checkpoint.metric_name=null"])
    with pytest.raises(CheckpointError, match=r"best, which is not there.*`first latest`"):
        main([str(path)])


def test_the_last_checkpoint_can_be_taken_instead(tmp_path: Path) -> None:
    entries = OmegaConf.to_container(OmegaConf.load(write_chain(tmp_path)))["stages"]
    entries[1]["checkpoints"] = {"checkpoint.init_from": "first latest"}
    chain = read_stages(write_chain(tmp_path, stages=entries))
    assert chain[1].needs == (("first", "latest"),)
    with pytest.raises(CheckpointError, match="latest, which is not there"):
        check_needs(chain[1], chain)


def test_a_stage_of_several_nodes_is_for_a_cluster(tmp_path: Path) -> None:
    stage = Stage("big", tmp_path / "big", ("recipe=toy",), nodes=8, gpus=8)
    with pytest.raises(LaunchError, match=r"needs 8 nodes.*--processes N"):
        local_command(stage)
    assert "--nproc_per_node=2" in local_command(stage, processes=2)
    one_host = Stage("small", tmp_path / "small", ("recipe=toy",), gpus=4)
    assert "--nproc_per_node=4" in local_command(one_host)
    assert "torch.distributed.run" not in local_command(one_host, processes=1)


def test_a_chain_that_is_asked_to_stop_passes_it_on_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stage is told, and the chain ends with the code that batch scripts requeue by."""
    path = write_chain(tmp_path)
    # In place of a training: it asks its chain to stop, waits to be told, and leaves as one does.
    stage = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "signal.pause()\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "local_command", lambda *_: [sys.executable, "-c", stage])
        assert cli.main(["stages", str(path)]) == 85
    assert "asked to stop in stage first" in capsys.readouterr().err
