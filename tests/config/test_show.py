"""overt/config/show.py: Hydra's flags, before or after the settings, for `config` and `train`."""

import pytest
import yaml

from overt.cli import main
from overt.config import load
from overt.config.show import with_default_values

WORDS = ["recipe=hjepa_tiny", "optimizer=muon"]


@pytest.mark.parametrize("verb", ["config", "train"])
def test_cfg_and_info_print_and_end(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--cfg", "job", *WORDS]) == 0
    assert capsys.readouterr().out == load(WORDS).text
    assert main([verb, "--info", *WORDS]) == 0
    assert ["optimizer", "muon"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("recipe", ["hjepa", "lbm", "blade_depthnet"])
def test_a_configuration_is_shown_before_its_data_are_named(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"recipe={recipe}"]
    assert main(["config", *words]) == 0
    printed, note = capsys.readouterr()
    assert "data.root" in note
    shown, complete = (
        yaml.safe_load(text) for text in (printed, load([*words, "data.root=x"]).text)
    )
    assert shown["data"].pop("root") == "???"
    assert complete["data"].pop("root") == "x"
    assert shown == complete
    assert main(["config", *words, "training.num_stps=3"]) == 2  # other mistakes are refused


def test_a_sweep_has_no_single_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "--cfg", "job", "recipe=hjepa_tiny", "seed=1,2"]) == 2
    assert "omit -m" in capsys.readouterr().err


def test_a_setting_is_not_the_value_of_an_option() -> None:
    assert with_default_values(["--info", "a=1"]) == ["--info=all", "a=1"]
    assert with_default_values(["--explain", "a=1"]) == ["--explain=", "a=1"]
    kept = ["--info", "defaults", "a=1", "--explain", "training"]
    assert with_default_values(kept) == kept
