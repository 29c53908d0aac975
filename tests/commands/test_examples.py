"""`overt examples` lists what there is and copies one; nothing is overwritten."""

import inspect
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from overt.cli import main
from overt.config import load


def test_examples_are_listed_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    assert "own_recipe" in capsys.readouterr().out
    target = tmp_path / "mine"
    assert main(["examples", "own_recipe", "--out", str(target)]) == 0
    assert (target / "recipe.py").is_file()
    assert (target / "conf" / "recipe" / "own_recipe.yaml").is_file()
    assert main(["examples", "own_recipe", "--out", str(target)]) == 1
    assert "exists" in capsys.readouterr().err


def test_a_copy_works_under_its_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration named the classes of the folder it was copied from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")  # which --package extends
    for name, recipes in {
        "own_recipe": ["own_recipe", "own_recipe_focal", "own_recipe_sharpness"],
        "methods": ["gan", "lora", "stream"],
        "jepa": ["jepa_watched"],
    }.items():
        package = f"my_{name}"
        assert main(["examples", name, "--out", f"sub dir/{package}"]) == 0
        folder = Path("sub dir", package)
        for recipe in recipes:
            config = load([f"recipe={recipe}"], packages=[str(folder)], needs_data=False)
            kind = resolve_name(config.recipe._target_)
            assert Path(inspect.getfile(kind)).parent == folder.resolve()
            # What it derives from comes from the copy, too.
            assert name not in {base.__module__.partition(".")[0] for base in kind.__mro__}
        page = (folder / "README.md").read_text()
        assert f"'sub dir/{package}" in page
        assert f"examples/{name}" not in page


def test_a_package_needs_a_name_of_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["examples", "own_recipe", "--out", str(tmp_path / "my-recipe")]) == 2
    assert "such as my_recipe" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["examples", "blade", "--out", str(tmp_path / "my-blade")]) == 0


def test_an_unknown_example_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "own_recip"]) == 2
    assert "did you mean own_recipe" in capsys.readouterr().err
