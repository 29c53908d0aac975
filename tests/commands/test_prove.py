"""`overt prove`: a sound recipe is proved, one with state that nobody saves is found out."""

import json
from pathlib import Path

import pytest
from toy_runs import TOY

from overt.commands.prove import main
from overt.errors import ConfigError, OvertError

TOY_RUN = ["--package", str(TOY), "recipe=toy"]
SHORT = ["--steps", "5", "--save-every", "2"]

FORGETFUL = '''
from toy_recipe.recipe import Toy


class Forgetful(Toy):
    """Its loss depends on how often it was asked in this process: no checkpoint knows that."""

    calls = 0

    def loss(self, model, batch, counts, step):
        self.calls += 1
        batch.targets.add_(self.calls * 0.01)
        return super().loss(model, batch, counts, step)
'''


def test_the_toy_recipe_is_proved_on_two_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TOY_RUN, "model.dropout=0.3", "training.ema_momentum=0.9", *SHORT]
    assert main(["resume", *words, "--processes", "2", "--folder", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert "PROVED" in shown
    assert "NOT" not in shown
    # 6 weights, the average of each; two moments and a count for each of the 4 trained ones
    assert "6 of ema, 6 of model, 12 of optimizer" in shown
    assert "5 losses" in shown


@pytest.fixture
def forgetful(tmp_path: Path) -> list[str]:
    package = tmp_path / "forgetful"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "recipe.py").write_text(FORGETFUL)
    conf = package / "conf" / "recipe"
    conf.mkdir(parents=True)
    lines = ["# @package _global_", "defaults: [toy, _self_]", "recipe:"]
    lines += ["  name: forgetful", "  _target_: forgetful.recipe.Forgetful"]
    (conf / "forgetful.yaml").write_text("\n".join(lines))
    return ["--package", str(TOY), "--package", str(package), "recipe=forgetful"]


def test_state_that_is_not_saved_is_found_out(
    forgetful: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    words = [*forgetful, *SHORT, "--kill-at", "3", "--folder", str(folder), "--json"]
    assert main(["resume", *words]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["proved"] is False
    assert answer["difference"].startswith("model.safetensors: first.bias: ")
    assert answer["facts"]["killed"] == "rank 0 by SIGKILL before step 4, saved: step 2"
    assert (folder / "killed" / "checkpoints").is_dir()  # kept, to look at


def test_world_is_proved_and_a_tolerance_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["world", *TOY_RUN, *SHORT, "--folder", str(tmp_path / "one")]) == 0
    assert "PROVED" in capsys.readouterr().out
    # Each process draws its own dropout.
    words = [*TOY_RUN, *SHORT, "model.dropout=0.5", "--folder", str(tmp_path / "two")]
    assert main(["world", *words]) == 1
    assert "Dropout" in capsys.readouterr().out


def test_a_loss_without_side_effects_is_proved_and_another_is_not(
    forgetful: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loss", *TOY_RUN]) == 0
    shown = capsys.readouterr().out
    assert "PROVED" in shown
    assert "6 parameters" in shown
    assert main(["loss", *forgetful]) == 1
    assert "NOT PROVED: loss changed the recipe.calls: " in capsys.readouterr().out
    assert main(["loss", *forgetful, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["proved"] is False
    assert "recipe.calls" in answer["difference"]


def test_a_run_that_fails_by_itself_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(OvertError, match=r"exit codes \[1\].*(?s:.*)sample 3") as caught:
        main(["resume", *TOY_RUN, *SHORT, "data.broken_sample=3", "--folder", str(tmp_path)])
    assert "undisturbed.log" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume", "--save-every", "12"], "--save-every 12 with --steps 12"),
        (["resume", "--steps", "1"], "--steps 1"),
        (["world", "--processes", "1"], "world takes 2 or more"),
        (["resume", "--kill-at", "12"], "--kill-at 12; use random, or 1 to 11"),
        (["resume", "--kill-at", "soon"], "--kill-at soon"),
    ],
)
def test_what_proves_nothing_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", "\\(")):
        main([*words, *TOY_RUN])


def test_the_folder_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        main(["resume", *TOY_RUN, "--folder", str(tmp_path)])
