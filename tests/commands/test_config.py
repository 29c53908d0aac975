"""overt/commands/config.py: the printed configuration loads again, and every key is explained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from overt.cli import main
from overt.config import load


def test_printed_configuration_is_the_one_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["recipe=cotracker3_offline", "data.root=x", "optimizer.lr=0.25"]
    assert main(["config", *words]) == 0
    file = tmp_path / "config.yaml"
    file.write_text(capsys.readouterr().out)
    assert load([], config_file=str(file)) == load(words)


def test_every_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "recipe=cotracker3_offline", "data.root=x", "--explain"]) == 0
    printed = capsys.readouterr().out
    explained = {line.split(" = ")[0] for line in printed.splitlines() if not line[0].isspace()}
    values = OmegaConf.to_container(
        OmegaConf.create(load(["recipe=cotracker3_offline", "data.root=x"]).text)
    )
    assert isinstance(values, dict)
    free_form = {"optimizer.arguments", "schedule._target_"}
    leaves = set(flatten(values, "", free_form))
    assert leaves - free_form <= explained


def flatten(values: dict[Any, Any], prefix: str, whole: set[str]) -> Iterator[str]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in whole:
            yield from flatten(value, name + ".", whole)
        else:
            yield name


def test_one_key_or_section(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["config", "recipe=cotracker3_offline", "data.root=x", "--explain"]
    assert main([*base, "training.num_steps"]) == 0
    assert "total optimizer steps" in capsys.readouterr().out
    assert main([*base, "schedule"]) == 0
    assert "schedule.warmup_fraction = 0.05" in capsys.readouterr().out
    assert main([*base, "training.num_stps"]) == 2
    assert "did you mean training.num_steps?" in capsys.readouterr().err
