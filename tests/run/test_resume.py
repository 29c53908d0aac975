"""overt/run/resume.py: when a run may go on, from what, and what it writes down."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from toy_runs import TOY, losses_by_step, same_bits, toy_config, train_toy, weights

from overt.config import build_recipe, load
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.errors import CheckpointError, ConfigError
from overt.train import main as train_main

EVERYTHING = ["model.dropout=0.3", "training.ema_momentum=0.9", "checkpoint.keep_last_n=9"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with the checkpoints of steps 3, 6, 9 and 12; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("finished")
    train_toy(folder, *EVERYTHING)
    return folder / "toy"


@pytest.fixture
def interrupted(finished: Path, tmp_path: Path) -> Path:
    """The same run as if it had ended after step 9; its folder is named as a run's."""
    run = tmp_path / "toy"
    shutil.copytree(finished, run, symlinks=True)
    shutil.rmtree(run / "checkpoints" / "step_00000012")
    return run


def resume(run: Path, *overrides: str) -> Trainer:
    config = toy_config(run.parent, *EVERYTHING, *overrides)
    return Trainer(config, build_recipe(config), init_distributed("cpu"))


def assert_same_end(run: Path, whole: Path) -> None:
    for part in ("model", "optimizer", "ema", "rng"):
        assert same_bits(weights(run, 12, part), weights(whole, 12, part)), part
    assert losses_by_step(run) == losses_by_step(whole)


def test_the_stored_configuration_alone_starts_the_run_again(
    finished: Path, tmp_path: Path
) -> None:
    arguments = ["--config", str(finished / "config.yaml"), "--package", str(TOY)]
    assert train_main([*arguments, f"output_dir={tmp_path}"]) == 0
    assert_same_end(tmp_path / "toy", finished)
    stored = finished / "checkpoints/step_00000012/config.yaml"
    assert stored.read_text() == (finished / "config.yaml").read_text()
    assert load([], str(stored), [str(TOY)]) == load([], arguments[1], [str(TOY)])


def test_a_changed_setting_is_refused_and_listed(interrupted: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        resume(interrupted, "optimizer.lr=0.02", "model.dropout=0.5")
    text = str(refused.value)
    assert "optimizer.lr: 0.01 -> 0.02" in text
    assert "model.dropout: 0.3 -> 0.5" in text
    accepting = text.splitlines()[-1].strip().strip("'")
    assert accepting.startswith("checkpoint.accept_changes=[")
    assert set(accepting.partition("=")[2].strip("[]").split(",")) == {
        "optimizer.lr",
        "model.dropout",
    }
    assert text.count("->") == 2  # and nothing else


def test_a_refused_resume_leaves_the_folder_as_it_was(interrupted: Path) -> None:
    def content() -> dict[str, bytes]:
        files = (path for path in interrupted.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = content()
    with pytest.raises(ConfigError):
        resume(interrupted, "optimizer.lr=0.02")
    assert content() == before


def test_a_changed_setting_goes_on_when_accepted(interrupted: Path, finished: Path) -> None:
    trainer = resume(interrupted, "optimizer.lr=0.02", "checkpoint.accept_changes=[optimizer.lr]")
    assert trainer.state.step == 9
    trainer.train()
    assert not same_bits(weights(interrupted, 12), weights(finished, 12))
    assert load([], str(interrupted / "config.yaml"), [str(TOY)]).optimizer.lr == 0.02


def test_settings_of_the_optimizer_that_are_accepted_are_used(
    interrupted: Path, finished: Path
) -> None:
    """A checkpoint holds those of before, and must not bring them back."""
    trainer = resume(
        interrupted,
        "optimizer.weight_decay=0.5",
        "optimizer.arguments.betas=[0.5,0.6]",
        "checkpoint.accept_changes=[optimizer.weight_decay,optimizer.arguments.betas]",
    )
    decays = [group["weight_decay"] for group in trainer.optimizer.param_groups]
    assert max(decays) == 0.5
    assert all(list(group["betas"]) == [0.5, 0.6] for group in trainer.optimizer.param_groups)
    trainer.train()
    assert not same_bits(weights(interrupted, 12), weights(finished, 12))


def test_settings_that_change_no_number_are_free(interrupted: Path, finished: Path) -> None:
    trainer = resume(
        interrupted,
        "logging.every_steps=2",
        "checkpoint.every_steps=1",
        "checkpoint.background=true",
        "training.nonfinite=stop",
        "training.num_workers=1",
        "training.evaluate_every_steps=2",
    )
    assert trainer.state.step == 9
    trainer.train()
    for part in ("model", "optimizer", "ema", "rng"):
        assert same_bits(weights(interrupted, 12, part), weights(finished, 12, part)), part


@pytest.mark.parametrize("change", ["training.batch_size=4", "data.samples=11"])
def test_another_batch_or_data_set_is_refused(change: str, interrupted: Path) -> None:
    with pytest.raises(ConfigError, match=r"global batch size 2 -> 4|samples 10 -> 11"):
        resume(interrupted, change)


def test_another_split_of_the_same_batch_is_free(interrupted: Path) -> None:
    trainer = resume(interrupted, "training.batch_size=1", "training.accumulation_steps=2")
    assert trainer.state.step == 9
    trainer.close()


def test_resume_never_refuses_a_used_folder(interrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"resume=never.*step_00000009.*another exp_name"):
        resume(interrupted, "checkpoint.resume=never")
    train_toy(tmp_path / "fresh", "checkpoint.resume=never", "training.num_steps=1")
    assert losses_by_step(tmp_path / "fresh/toy").keys() == {1}


@pytest.mark.parametrize("name", ["checkpoints/step_00000099", "config.yaml"])
def test_resume_from_what_is_no_checkpoint_is_refused(name: str, interrupted: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint folder"):
        resume(interrupted, f"checkpoint.resume={interrupted / name}")


def test_a_run_that_a_copy_moved_with_its_links_followed_resumes_and_moves_them(
    interrupted: Path, finished: Path
) -> None:
    folder = interrupted / "checkpoints"
    for name in ("latest", "best"):
        (folder / name).unlink(missing_ok=True)
        shutil.copytree(folder / "step_00000009", folder / name)
    for path in folder.glob("step_*"):
        shutil.rmtree(path)
    resume(interrupted).train()
    assert_same_end(interrupted, finished)
    assert (folder / "latest").readlink() == Path("step_00000012")
    assert {path.name for path in folder.glob("step_00000009*")} == {"step_00000009"}


def test_resume_from_a_named_checkpoint_goes_back_to_it(interrupted: Path, finished: Path) -> None:
    trainer = resume(interrupted, f"checkpoint.resume={interrupted}/checkpoints/step_00000003")
    assert trainer.state.step == 3
    trainer.train()
    # The rows after step 3 were written again, not twice.
    assert_same_end_but_for_names(interrupted, finished)


def resume_and_stop(run: Path, path: Path, steps: int) -> tuple[int, int]:
    """Start with checkpoint.resume=PATH, make steps and save; the first and the last step."""
    trainer = resume(run, f"checkpoint.resume={path}")
    first = trainer.state.step
    for _ in range(steps):
        trainer.train_step()
    trainer.save()
    trainer.close()
    return first, trainer.state.step


def test_the_same_command_does_not_go_back_to_a_named_checkpoint_again(
    interrupted: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So a preempted run gets on, however often it is restarted."""
    checkpoints = interrupted / "checkpoints"
    path, other = checkpoints / "step_00000003", checkpoints / "step_00000009"
    assert resume_and_stop(interrupted, path, 2) == (3, 5)
    assert "was resumed from" not in capsys.readouterr().out
    assert resume_and_stop(interrupted, path, 2) == (5, 7)
    said = " ".join(capsys.readouterr().out.split())
    assert f"was resumed from {path} before: it continues from its newest checkpoint" in said
    assert "step_00000005. To go back again, choose another exp_name" in said
    shutil.rmtree(path)  # retention may delete it
    assert resume_and_stop(interrupted, path, 1) == (7, 8)
    assert resume_and_stop(interrupted, other, 1) == (9, 10)  # another path is gone back to
    trainer = resume(interrupted, f"checkpoint.resume={other}")
    assert trainer.state.step == 10
    trainer.train()
    assert same_bits(weights(interrupted, 12), weights(finished, 12))


def test_what_is_left_of_another_history_is_no_place_to_continue(interrupted: Path) -> None:
    path = interrupted / "checkpoints/step_00000003"
    assert resume_and_stop(interrupted, path, 2) == (3, 5)
    (interrupted / "checkpoints/step_00000005/model.safetensors").write_bytes(b"damaged")
    assert resume_and_stop(interrupted, path, 1) == (3, 4)  # not 9, which came before


def assert_same_end_but_for_names(run: Path, whole: Path) -> None:
    newest = (run / "checkpoints/latest").resolve().name
    assert newest.startswith("step_00000012")
    assert losses_by_step(run) == losses_by_step(whole)
    rows = (run / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == len((whole / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_broken_checkpoint_is_put_aside_and_the_one_before_is_used(
    name: str,
    interrupted: Path,
    finished: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = interrupted / "checkpoints/step_00000009" / name
    file.write_bytes(file.read_bytes()[:-8])
    trainer = resume(interrupted)
    assert trainer.state.step == 6
    assert "step_00000009" in caplog.text  # said, not silent
    trainer.train()
    assert (interrupted / "checkpoints/step_00000009.broken" / name).exists()
    assert_same_end(interrupted, finished)


def test_the_folder_holds_what_its_description_says(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {"config.yaml", "command.txt", "metrics.jsonl", "events.jsonl", "checkpoints"}
    assert len((finished / "command.txt").read_text().splitlines()) == 1
    state = json.loads((finished / "checkpoints/step_00000012/state.json").read_text())["state"]
    assert state["learning_rate"] == {"base": 0.01, "rule": "none", "used": 0.01}


def test_the_start_says_batch_and_learning_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: Any = toy_config(
        tmp_path,
        "training.accumulation_steps=2",
        "optimizer.lr_scaling=sqrt",
        "optimizer.lr_base_batch=16",
        "training.num_steps=1",
    )
    Trainer(config, build_recipe(config), init_distributed("cpu")).train()
    text = capsys.readouterr().out
    assert "2 per process x 1 process(es) x 2 accumulated = 4" in text
    assert "0.005 (sqrt scaling of 0.01 from batch 16)" in text
    assert "none 0.01, linear 0.0025, sqrt 0.005" in text


@pytest.mark.parametrize("resume_setting", ["auto", "never"])
def test_a_run_whose_checkpoints_are_all_damaged_never_starts_from_scratch(
    resume_setting: str, interrupted: Path
) -> None:
    for path in (interrupted / "checkpoints").glob("step_*/model.safetensors"):
        path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        resume(interrupted)
    for _ in range(2):  # a launcher restarts it again and again
        with pytest.raises(CheckpointError, match=r"step_00000009\.broken.*none is usable"):
            resume(interrupted, f"checkpoint.resume={resume_setting}")


def test_a_run_whose_checkpoints_are_gone_never_starts_from_scratch(interrupted: Path) -> None:
    shutil.rmtree(interrupted / "checkpoints")
    with pytest.raises(CheckpointError, match=r"has held checkpoints \(step_00000012\)"):
        resume(interrupted)
