"""`overt recipes` lists every recipe with one line."""

import pytest

from overt.cli import main
from overt.config import CONF

OWN = "examples/own_recipe"


def test_every_recipe_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = sorted(file.stem for file in (CONF / "recipe").glob("*.yaml"))
    assert [line.split()[0] for line in lines[: len(names)]] == names
    assert all(len(line.split()) > 3 for line in lines[: len(names)])


def test_a_word_and_a_package_select(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    package = str(request.config.rootpath / OWN)
    assert main(["recipes", "own", "--package", package]) == 0
    assert capsys.readouterr().out.startswith("own_recipe ")
    assert main(["recipes", "cotraker"]) == 2
    assert "cotraker" in capsys.readouterr().err
