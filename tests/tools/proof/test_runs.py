"""overt/tools/proof/runs.py: what a proof trains, when it kills, and what it says of a failure."""

from pathlib import Path

import pytest
from toy_runs import TOY

from overt.config import load
from overt.errors import ConfigError, OvertError
from overt.tools.proof.processes import Ended
from overt.tools.proof.runs import Plan, _expect_success, choose_kill


def plan(folder: Path, **changed: object) -> Plan:
    values = {
        "overrides": ["recipe=toy", "model.dropout=0.3"],
        "packages": [str(TOY)],
        "config_file": None,
        "folder": folder,
        "steps": 5,
        "save_every": 2,
        "processes": 2,
        "deadline": 60.0,
    }
    return Plan(**(values | changed))  # type: ignore[arg-type]


def test_the_words_are_a_short_run_logged_at_every_step(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    words = plan(folder).words("killed", "seed=3")
    assert words[:2] == ["--package", str(TOY)]
    config = load(words[2:], packages=[str(TOY)])
    assert config.run_dir == folder / "killed"
    assert (config.training.num_steps, config.training.num_epochs, config.seed) == (5, None, 3)
    assert (config.logging.every_steps, config.checkpoint.every_steps) == (1, 2)
    assert config.checkpoint.resume == "auto"
    assert config.settings.model.dropout == 0.3
    checkpoint = plan(folder).last_checkpoint("killed")
    assert checkpoint == config.run_dir / "checkpoints" / "step_00000005"


def test_a_stored_configuration_comes_before_the_overrides(tmp_path: Path) -> None:
    words = plan(tmp_path, config_file="config.yaml", overrides=["seed=1"]).words("a")
    assert words[2:5] == ["--config", "config.yaml", "seed=1"]


def test_the_kill_comes_after_the_first_save_where_there_is_one() -> None:
    steps = {choose_kill("random", 10, 4, 3, seed)[0] for seed in range(300)}
    assert steps == {5, 6, 7, 8, 9}
    assert choose_kill("2", 10, 4, 1, 0) == (2, 0)
    assert {choose_kill("random", 3, 5, 1, seed)[0] for seed in range(20)} == {2}  # never saved
    for asked in ("0", "10", "-1", "soon", "1.5"):
        with pytest.raises(ConfigError, match=r"allowed is random, or 1 to 9"):
            choose_kill(asked, 10, 4, 1, 0)


def test_a_run_that_fails_is_quoted(tmp_path: Path) -> None:
    proof = plan(tmp_path)
    _expect_success(proof, "undisturbed", Ended([0, 0], [], 1.0))
    (tmp_path / "undisturbed.log").write_text("\n".join(f"line {n}" for n in range(9)))
    with pytest.raises(OvertError) as failed:
        _expect_success(proof, "undisturbed", Ended([0, 1], [], 1.0))
    assert "exit codes [0, 1]" in str(failed.value)
    assert "line 8" in str(failed.value)
    assert "line 3" not in str(failed.value)
    with pytest.raises(OvertError, match=r"did not end within 60 s; raise --deadline"):
        _expect_success(proof, "undisturbed", Ended([0, -9], [1], 60.0))
