"""Training from Python: what `overt.train` and `overt.evaluate` return, leave behind and refuse."""

import ast
import json
import logging
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from toy_recipe.recipe import Toy
from toy_runs import HERE, TOY, losses_by_step, same_bits, train_toy, weights

import overt
from overt.commands.ckpt import main as export
from overt.errors import CheckpointError, ConfigError
from overt.train import main

SHORT: dict[str, Any] = {
    "packages": [TOY],
    "training": {"num_steps": 6},
    "checkpoint": {"every_steps": 2},
}


# --- the package ---------------------------------------------------------------------------------


def test_names_are_shown_before_torch_is_loaded() -> None:
    program = """
import sys
import overt
names = dir(overt)
assert {"configure", "train", "evaluate", "testing", "Recipe", "StepOutput"} <= set(names)
assert not [name for name in names if name.startswith("_") and not name.startswith("__")]
overt.configure("hjepa_tiny", training={"num_steps": 5})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_name_is_there_and_known_to_type_checkers() -> None:
    for name in overt.__all__:
        assert getattr(overt, name) is not None
    with pytest.raises(AttributeError, match="overt has no 'trian'"):
        _ = overt.trian  # type: ignore[attr-defined]
    tree = ast.parse(Path(overt.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    names = [alias.asname for node in block.body for alias in node.names]  # type: ignore[attr-defined]
    assert sorted(names) == overt.__all__


def test_train_is_a_module_and_can_be_called() -> None:
    assert overt.train.main is main  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="recipe=toi"):
        overt.train("toi")


# --- training and scoring ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> overt.Result:
    return overt.train("toy", output_dir=tmp_path_factory.mktemp("api"), **SHORT)


def test_a_run_is_that_of_the_command_line(trained: overt.Result, tmp_path: Path) -> None:
    assert trained.step == 6
    assert trained.finished is None
    train_toy(tmp_path, "training.num_steps=6", "checkpoint.every_steps=2")
    assert same_bits(weights(trained.run_dir, 6), weights(tmp_path / "toy", 6))
    assert losses_by_step(trained.run_dir) == losses_by_step(tmp_path / "toy")


def test_everything_that_was_trained_can_be_scored(trained: overt.Result, tmp_path: Path) -> None:
    scores = trained.scores
    assert scores["error"] > 0
    assert overt.evaluate(trained) == pytest.approx(scores)
    assert overt.evaluate(trained.run_dir, packages=[TOY]) == pytest.approx(scores)
    assert overt.evaluate(str(trained.checkpoint), recipe=Toy) == pytest.approx(scores)
    weights_alone = trained.checkpoint / "model.safetensors"
    given = overt.evaluate(weights_alone, recipe="toy", packages=[TOY])
    assert given == pytest.approx(scores)
    exported = tmp_path / "toy.safetensors"
    words = ["export", str(trained.checkpoint), "--to", "safetensors", "--output", str(exported)]
    assert export(words) == 0
    assert overt.evaluate(exported, packages=[TOY]) == pytest.approx(scores)
    fewer = overt.evaluate(trained, settings={"evaluation": {"samples": 2}})
    assert fewer != pytest.approx(scores)


def test_what_cannot_be_scored_is_refused(trained: overt.Result, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        overt.evaluate(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no configuration; add recipe=NAME or a class"):
        overt.evaluate(trained.checkpoint / "model.safetensors")
    with pytest.raises(ConfigError, match="is not allowed"):
        overt.evaluate(trained.run_dir)


def test_the_trained_model_is_loaded(trained: overt.Result) -> None:
    model = trained.load_model()
    assert not model.training
    assert same_bits(model.state_dict(), weights(trained.run_dir, 6))


def test_the_same_call_again_has_nothing_to_do_and_another_is_refused(tmp_path: Path) -> None:
    first = overt.train("toy", output_dir=tmp_path, **SHORT)
    again = overt.train("toy", output_dir=tmp_path, **SHORT)
    assert again.scores == first.scores
    assert again.step == 6
    with pytest.raises(ConfigError, match="was made with other settings"):
        overt.train("toy", output_dir=tmp_path, **SHORT, optimizer={"lr": 1.0})


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    handlers = list(logging.getLogger("overt").handlers)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for name in ("one", "two"):
        workers = {"num_steps": 3, "num_workers": 1}
        result = overt.train(
            "toy", packages=[TOY], output_dir=tmp_path, exp_name=name, training=workers
        )
        assert result.step == 3
    contradiction = overt.configure(result.config, exp_name="no", training={"strategy": "ddp"})
    with pytest.raises(ConfigError, match="ddp and fsdp take several"):
        overt.train(contradiction)
    assert not torch.distributed.is_initialized()
    assert logging.getLogger("overt").handlers == handlers
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert same_bits(weights(tmp_path / "one", 3), weights(tmp_path / "two", 3))


def train_twice(folder: Path) -> list[Any]:
    """Each call joins a process group of its own and leaves it."""
    outcomes: list[Any] = []
    for name in ("one", "two"):
        result = overt.train("toy", output_dir=folder, exp_name=name, **SHORT)
        outcomes += [result.scores, overt.evaluate(result), torch.distributed.is_initialized()]
    return outcomes


def test_two_processes_train_twice(run_processes: Callable[..., list[Any]], tmp_path: Path) -> None:
    first, second = run_processes(train_twice, 2, tmp_path)
    assert first == second
    assert first[:3] == first[3:]
    assert first[0] == pytest.approx(first[1])
    assert first[2] is False


# --- interrupted ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard() -> Iterator[None]:
    """Where the tests run in the background, it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted(Toy):
    """Gets Ctrl-C in its loss, as often as it says."""

    at: int | None = None
    times = 1

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
        if step == type(self).at:
            type(self).at = None
            for _ in range(self.times):
                handler = signal.getsignal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                while signal.getsignal(signal.SIGINT) is handler:
                    time.sleep(0.001)  # two that are pending at once are one
        return super().loss(model, batch, counts, step)


def interrupted_run(folder: Path) -> overt.Result:
    toy = overt.configure("toy", packages=[TOY])
    training = {"num_steps": 6, "batch_size": 2, "num_workers": 0, "drop_last": False}
    return overt.train(
        Interrupted,
        settings=toy.settings,
        training={**training, "grad_clip_norm": 1.0, "device": "cpu"},
        optimizer={"lr": 0.01},
        logging={"every_steps": 1, "use_tensorboard": False},
        checkpoint={"every_steps": 5},
        output_dir=folder,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupted_run(tmp_path_factory.mktemp("undisturbed")).run_dir


def test_an_interrupt_saves_and_the_same_call_resumes(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interrupted, "at", 2)
    with pytest.raises(KeyboardInterrupt, match="step 3 of 6 is saved"):
        interrupted_run(tmp_path)
    assert (tmp_path / "Interrupted/checkpoints/step_00000003").is_dir()
    assert interrupted_run(tmp_path).step == 6
    assert same_bits(weights(tmp_path / "Interrupted", 6), weights(undisturbed, 6))


def test_an_interrupt_saves_on_the_command_line_too(
    tmp_path: Path,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Interrupted, "at", 1)
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path)
    run = tmp_path / "Interrupted"
    command = ["--config", str(run / "config.yaml"), "--package", str(HERE), "--package", str(TOY)]
    monkeypatch.setattr(Interrupted, "at", 3)
    before = signal.getsignal(signal.SIGINT)
    assert main(command) == 130
    assert signal.getsignal(signal.SIGINT) is before
    output = capsys.readouterr()
    assert "interrupt again to stop at once" in output.out
    assert "step 4 of 6 is saved" in output.err
    assert json.loads((run / "events.jsonl").read_text().splitlines()[-1])["exit_code"] == 130
    assert main(command) == 0
    assert same_bits(weights(run, 6), weights(undisturbed, 6))


def test_it_resumes_on_the_command_line_too(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interrupted, "at", 2)
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path)
    run = tmp_path / "Interrupted"
    packages = ["--package", str(HERE), "--package", str(TOY)]
    assert main(["--config", str(run / "config.yaml"), *packages]) == 0
    assert same_bits(weights(run, 6), weights(undisturbed, 6))


def test_a_second_interrupt_stops_at_once_and_the_run_is_still_good(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interrupted, "at", 5)
    monkeypatch.setattr(Interrupted, "times", 2)
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path)
    assert not (tmp_path / "Interrupted/checkpoints/step_00000006").exists()
    assert interrupted_run(tmp_path).step == 6
    assert same_bits(weights(tmp_path / "Interrupted", 6), weights(undisturbed, 6))


# --- classes of a notebook or a script -----------------------------------------------------------

NOTEBOOK = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import overt
from toy_recipe.recipe import Toy

class Mine(Toy):
    pass

settings = overt.configure("toy", packages=[{str(TOY)!r}]).settings

def run(**training):
    training = {{"num_steps": 3, "batch_size": 2, "device": "cpu"}} | training
    return overt.train(Mine, settings=settings, training=training, output_dir="runs")
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=240
    )


def test_a_notebook_trains_and_is_told_about_workers(tmp_path: Path) -> None:
    program = f"""{NOTEBOOK}
print(run().step, overt.evaluate("runs/Mine", recipe=Mine))
try:
    run(num_workers=2)
except overt.errors.ConfigError as error:
    print("refused:", error)
try:
    overt.evaluate("runs/Mine")
except overt.errors.ConfigError as error:
    print("refused:", error)
"""
    done = python(tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr
    assert "training.num_workers=0. Move it into a module to load in parallel" in done.stderr
    assert "3 {'error': " in done.stdout
    assert "refused: training.num_workers=2, but loader processes cannot import Mine" in done.stdout
    assert "or set training.num_workers=0" in done.stdout
    assert "__main__.Mine is a class of a notebook or script" in done.stdout


def test_a_script_loads_in_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{NOTEBOOK}\nif __name__ == '__main__':\n    print(run(num_workers=1).step)")
    done = python(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3"


@pytest.mark.long
def test_a_script_that_its_loaders_would_run_again_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{NOTEBOOK}\nrun(num_workers=1)")
    done = python(tmp_path, str(script))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "a loader process ended before its first batch" in last
    assert "put the call of overt.train under `if __name__ == '__main__':`" in last


def test_a_local_class_is_refused_with_workers_only(tmp_path: Path) -> None:
    class Local(Toy):
        pass

    settings = overt.configure("toy", packages=[TOY]).settings
    training = {"num_steps": 2, "batch_size": 2, "num_workers": 1}
    with pytest.raises(ConfigError, match=r"cannot import Local: .*Move it into a module"):
        overt.train(Local, settings=settings, training=training, output_dir=tmp_path)
    done = overt.train(
        Local, settings=settings, training={**training, "num_workers": 0}, output_dir=tmp_path
    )
    assert done.step == 2
    assert not multiprocessing.active_children()
