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


def test_without_a_recipe_the_groups_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert {"recipe", "optimizer", "schedule"} <= set(lines)
    assert any(line.startswith("  adamw ") and "usual choice" in line for line in lines)
    assert "  hjepa_tiny " in printed


def test_a_choice_is_explained_with_and_without_a_recipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "--explain", "training.precision"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("training.precision\n    str: fp32, tf32, bf16 or fp16\n")
    assert "      bf16  GPUs since Ampere" in printed
    assert main(["config", "recipe=hjepa_tiny", "--explain", "training.precision"]) == 0
    assert "    * fp32  reference and CPUs" in capsys.readouterr().out
    assert main(["config", "--explain", "model.depth"]) == 2
    assert "keys of a recipe need recipe=NAME" in capsys.readouterr().err


def test_who_knows_hydra_finds_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe=hjepa_tiny", "optimizer=muon"]
    assert main(["config", *words]) == 0
    plain = capsys.readouterr().out
    assert main(["config", *words, "--cfg", "job"]) == 0
    assert capsys.readouterr().out == plain
    assert main(["config", *words, "--info"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["optimizer", "muon"] in lines
    assert ["recipe", "hjepa_tiny"] in lines
    assert main(["config", "--explain", "recipe=hjepa_tiny"]) == 0  # the key is optional
    assert "optimizer.lr = 0.002" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["optimizer", "recipe", "model"])
def test_a_section_that_is_taken_away_is_named(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "recipe=hjepa_tiny", f"~{group}"]) == 2
    said = capsys.readouterr().err
    assert f"~{group} removes the section {group}, which every run needs" in said
    assert f"{group}=NAME (" in said


def test_keys_are_explained_before_the_data_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "recipe=hjepa", "--explain", "data"]) == 0
    assert "data.root = (data.root was not given)" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["optimizer.arguments", "evaluation.transfer"])
def test_a_key_that_holds_a_mapping_is_explained(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "recipe=ijepa_cifar", "--explain", key]) == 0
    assert capsys.readouterr().out.startswith(f"{key} = {{")


def test_keys_outside_of_sections_need_no_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--explain", "seed"]) == 0
    assert "random seed" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["model"], ["loss", "recipe=pcdiff_refine"]])
def test_a_section_without_keys_is_not_passed_over_in_silence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *words[1:], "--explain", words[0]]) == 2
    assert f"--explain {words[0]}: no such key" in capsys.readouterr().err


def test_a_misspelled_section_is_told_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--explain", "trainin"]) == 2
    assert "did you mean training?" in capsys.readouterr().err
