"""Who may import whom: the arrows of the house, read from the source of every module."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import overt

ROOT = Path(overt.__file__).parent
LEAVES = (
    "errors", "distributed", "schedule", "evaluation",
    "ops", "nn", "geometry", "data", "metrics", "viz", "report",
)  # fmt: skip
ABOVE_LEAVES = ("engine", "recipes", "recipe", "config", "schema", "commands", "train", "cli")
WITHOUT_TORCH = ("config", "schema", "recipe", "schedule", "errors", "cli", "train")


class Import(NamedTuple):
    file: Path
    line: int
    name: str  # dotted, as far as it is known: `from overt.nn import ema` is overt.nn.ema
    at_start: bool  # run when the module is imported, not within a function


def imports_of(file: Path, root: Path) -> Iterator[Import]:
    """Every import of a module but those for the type checker only."""
    package = ("overt", *file.relative_to(root).parent.parts)

    def visit(node: ast.AST, at_start: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, at_start)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, f"{base}.{alias.name}", at_start)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from visit(child, at_start)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, at_start and not inside)

    yield from visit(ast.parse(file.read_text(), str(file)), at_start=True)


def is_within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == f"overt.{part}" or name.startswith(f"overt.{part}.") for part in parts)


def forbidden(found: Import, root: Path) -> str | None:
    """Why this import goes against the direction of the house, if it does."""
    module = found.file.relative_to(root).with_suffix("").parts
    home, name = module[0], found.name
    if name.partition(".")[0] == "torch" and found.at_start:
        is_settings = home == "recipes" and module[-1] == "config"
        if module in {(part,) for part in WITHOUT_TORCH} or is_settings or home == "commands":
            return "must be usable without torch; import it within the function that needs it"
        return None
    if home != "cli" and is_within(name, ("commands", "cli")) and home != "__main__":
        return "commands are reached through the command line only"
    if home in LEAVES and is_within(name, ABOVE_LEAVES):
        return "leaves know nothing of engine, recipes or configuration"
    if home == "recipes":
        own = f"overt.recipes.{module[1]}"
        if is_within(name, ("engine", "config", "schema", "train")):
            return "recipes know nothing of the engine and its configuration"
        if is_within(name, ("recipes",)) and not (name + ".").startswith(own + "."):
            return "recipes know nothing of each other"
    if home == "engine" and is_within(name, ("recipes", "train")):
        return "the engine knows no recipe by name"
    if home in ("config", "schema", "recipe") and is_within(name, ("engine", "recipes", "train")):
        return "configuration comes before the engine; recipes are reached by their _target_"
    return None


def wrong_arrows(root: Path) -> list[str]:
    lines = []
    for file in sorted(root.rglob("*.py")):
        for found in imports_of(file, root):
            reason = forbidden(found, root)
            if reason is not None:
                where = f"{file.relative_to(root.parent)}:{found.line}"
                lines.append(f"{where} imports {found.name}: {reason}")
    return lines


def test_no_import_goes_against_the_direction_of_the_house() -> None:
    wrong = wrong_arrows(ROOT)
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_part_of_the_house_is_known_to_this_test() -> None:
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    known = {*LEAVES, *ABOVE_LEAVES, "__init__", "__main__", "__pycache__", "conf", "launch"}
    known |= {"doctor", "proof", "plan"}
    assert parts <= known


PLANTED = [
    ("nn/wrong.py", "import torch\n\nimport overt.engine.trainer\n", 3),
    ("data/wrong.py", "from overt import recipe\n", 1),
    ("geometry/wrong.py", "def f():\n    from overt.config import load\n", 2),
    ("viz/deep/wrong.py", "from ...engine import trainer\n", 1),
    ("recipes/one/wrong.py", "from overt.recipes.two import model\n", 1),
    ("recipes/one/wrong.py", "from ..two import model\n", 1),
    ("recipes/one/wrong.py", "from overt.engine import loader\n", 1),
    ("recipes/one/config.py", "import torch.nn as nn\n", 1),
    ("engine/wrong.py", "from overt.recipes.one.model import Net\n", 1),
    ("engine/wrong.py", "from overt.commands.config import explanations\n", 1),
    ("config.py", "if True:\n    import torch\n", 2),
    ("config.py", "from overt.engine import trainer\n", 1),
    ("schedule.py", "class A:\n    import torch\n", 2),
    ("commands/wrong.py", "from torch import Tensor\n", 1),
    ("commands/wrong.py", "from overt.commands.other import main\n", 1),
]


@pytest.mark.parametrize(("name", "source", "line"), PLANTED)
def test_a_planted_wrong_arrow_is_found(name: str, source: str, line: int, tmp_path: Path) -> None:
    root = tmp_path / "overt"
    file = root / name
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (found,) = wrong_arrows(root)
    assert found.startswith(f"overt/{name}:{line} imports ")


ALLOWED = [
    ("recipes/one/fine.py", "import torch\nfrom overt.recipes.one.model import Net\n"),
    ("recipes/one/fine.py", "from . import model\nfrom overt.recipe import StepOutput\n"),
    ("engine/fine.py", "from overt.config import Config\nfrom overt.nn.ema import update_ema\n"),
    ("config.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"),
    ("cli.py", "from overt.commands import config\n"),
    ("train.py", "def run():\n    import torch\n    from overt.engine import trainer\n"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_an_arrow_with_the_direction_is_let_through(name: str, source: str, tmp_path: Path) -> None:
    file = tmp_path / "overt" / name
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert wrong_arrows(tmp_path / "overt") == []
