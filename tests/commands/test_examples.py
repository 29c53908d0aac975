"""`overt examples` lists what there is and copies one; nothing is overwritten."""

from pathlib import Path

import pytest

from overt.cli import main


def test_examples_are_listed_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    assert "own_recipe" in capsys.readouterr().out
    target = tmp_path / "mine"
    assert main(["examples", "own_recipe", "--out", str(target)]) == 0
    assert (target / "recipe.py").is_file()
    assert (target / "conf" / "recipe" / "own_recipe.yaml").is_file()
    assert main(["examples", "own_recipe", "--out", str(target)]) == 1
    assert "exists" in capsys.readouterr().err


def test_an_unknown_example_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "own_recip"]) == 2
    assert "did you mean own_recipe" in capsys.readouterr().err
