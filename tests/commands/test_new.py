"""`overt new`: what it writes trains at once and keeps the contract; bad names are refused."""

import fnmatch
import runpy
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from toy_runs import HERE

from overt.cli import main
from overt.commands.new import FILES, refusal
from overt.train import main as train

ROOT = HERE.parent
TEMPLATES = {f"{name}.template" for name in FILES.values()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "deep" / "brand_new_method"
    assert main(["new", "spot_finder", "--out", str(folder)]) == 0
    return folder


def test_it_writes_a_package(folder: Path) -> None:
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {
        "__init__.py",
        "config.py",
        "recipe.py",
        "conf/recipe/spot_finder.yaml",
        "conf/recipe/spot_finder_tiny.yaml",
        "README.md",
        "tests/test_spot_finder.py",
    }
    for path in folder.rglob("*.*"):
        assert "${" not in path.read_text()
    assert "class SpotFinder(Recipe):" in (folder / "recipe.py").read_text()
    assert (
        "_target_: brand_new_method.recipe.SpotFinder"
        in (folder / "conf/recipe/spot_finder.yaml").read_text()
    )


def test_its_style_is_clean(folder: Path) -> None:
    ruff = Path(sys.executable).parent / "ruff"
    for words in (["check", "--select", "E,F,W,B,UP,SIM,RUF"], ["format", "--check"]):
        command = [str(ruff), *words, "--isolated", "--line-length", "100", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_it_trains_at_once(folder: Path, tmp_path: Path) -> None:
    words = ["recipe=spot_finder_tiny", "--package", str(folder), f"output_dir={tmp_path}"]
    short = ["training.num_steps=40", "training.device=cpu", "evaluation.samples=20"]
    assert train([*words, *short]) == 0
    assert (tmp_path / "spot_finder_tiny/checkpoints/best").exists()


def test_its_own_test_passes(folder: Path) -> None:
    module = runpy.run_path(str(folder / "tests/test_spot_finder.py"))
    module["test_spot_finder_keeps_the_contract"]()


def test_the_large_version_composes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "recipe=spot_finder", "--package", str(folder)]) == 0
    assert "width: 32" in capsys.readouterr().out


def test_templates_are_part_of_the_installed_package() -> None:
    found = {path.name for path in (files("overt") / "templates" / "recipe").iterdir()}
    assert found == TEMPLATES
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["overt"]
    for name in TEMPLATES:
        assert any(fnmatch.fnmatch(f"templates/recipe/{name}", pattern) for pattern in patterns)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["3d_tracker"], "NAME is '3d_tracker'; use a Python name"),
        (["my-method"], "NAME is 'my-method'"),
        (["class"], "NAME is 'class'"),
        (["_hidden"], "NAME is '_hidden'"),
        (["fine", "--out", "not-fine"], "the folder of --out is 'not-fine'"),
        (["lbm"], "overt has a recipe lbm already"),
        (["numpy"], "a Python module numpy is installed"),
        (["fine", "--out", "there"], "there exists; choose another NAME"),
        ([], "the following arguments are required: name"),
    ],
)
def test_what_cannot_be_is_refused_with_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["new", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_cannot_be_written_is_an_error_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["new", "fine", "--out", str(tmp_path / "file" / "fine")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert refusal("fine", tmp_path / "fine") is None


def test_a_folder_with_a_space_is_quoted_in_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "spot_finder", "--out", str(tmp_path / "my methods" / "spots")]) == 0
    assert f"--package '{tmp_path}/my methods/spots'" in capsys.readouterr().out
