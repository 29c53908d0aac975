"""Who may import whom, read from the source of every module; docs/architecture.md explains why.

Imports within functions and for the type checker count: a circle behind `TYPE_CHECKING` is one.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import overt

ROOT = Path(overt.__file__).parent

LEAVES = {
    "errors", "checks", "keywords", "nested", "garbage", "progress", "terminal",
    "launch_environment", "distributed", "schedule", "schedule_section", "evaluation", "files",
    "ops", "nn", "geometry", "data", "metrics", "viz",
}  # fmt: skip
SEAM = LEAVES | {"recipe", "tasks"}
CONFIG = SEAM | {"config"}
ENGINE = CONFIG | {"run", "checkpoint", "health", "engine"}
# Each room, and the rooms that it may import besides itself.
MAY_IMPORT = {
    **dict.fromkeys(LEAVES, LEAVES),
    "recipe": LEAVES,
    "tasks": SEAM,
    "config": SEAM,
    "checkpoint": CONFIG,
    "health": CONFIG,
    "run": CONFIG | {"checkpoint", "health"},
    "engine": CONFIG | {"run", "checkpoint", "health"},
    "recipes": SEAM,
    "tools": ENGINE | {"train"},
    "api": ENGINE,
    "compat": ENGINE | {"recipes"},
    "tracker": ENGINE,
    "testing": ENGINE | {"api", "train", "tools"},
    "train": ENGINE | {"api"},
    "commands": ENGINE | {"train", "tools", "tracker", "verbs"},
    "verbs": {"errors"},
    "cli": {"errors", "verbs", "train", "commands", "terminal"},
    "__init__": ENGINE | {"api", "testing", "tracker", "train"},
    "__main__": {"cli"},
}
WITHOUT_TORCH = {
    "progress",
    "terminal",
    "config",
    "recipe",
    "tasks",
    "checks",
    "keywords",
    "schedule",
    "schedule_section",
    "launch_environment",
    "errors",
    "cli",
    "train",
    "api",
}


# What an import can be part of; nine nodes out of ten are expressions.
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


class Import(NamedTuple):
    file: Path
    line: int
    name: str  # dotted, as far as it is known: `from overt.nn import ema` is overt.nn.ema
    at_start: bool  # run when the module is imported: not in a function, not for types only


@cache
def imports_of(file: Path, root: Path) -> list[Import]:
    """Every import of a module."""
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
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            types_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, STATEMENTS):
                    continue
                later = inside or (types_only and child not in getattr(node, "orelse", []))
                yield from visit(child, at_start and not later)

    return list(visit(ast.parse(file.read_text(), str(file)), at_start=True))


def forbidden(found: Import, root: Path) -> str | None:
    """Why this import goes against the direction of the house, if it does."""
    module = found.file.relative_to(root).with_suffix("").parts
    room = module[0]
    first, *rest = found.name.split(".")
    if first == "torch" and found.at_start:
        is_settings = room == "recipes" and module[-1] == "config"
        if room in WITHOUT_TORCH or is_settings or room == "commands":
            return "must be usable without torch; import it within the function that needs it"
        return None
    if first != "overt" or not rest or rest[0] == "__version__":
        return None
    target = rest[0]
    if target not in MAY_IMPORT:  # a public name of the package itself
        return None if room in ("commands", "testing") else f"overt.{target} is not a room"
    if target != room:
        if target in MAY_IMPORT[room]:
            return None
        return f"{room} may import {', '.join(sorted(MAY_IMPORT[room]))}, not {target}"
    # Within one room: recipes, tools and commands know nothing of each other.
    if room in ("recipes", "tools") and len(module) > 2 and rest[1:2] != [module[1]]:
        return f"{room}.{module[1]} knows nothing of {room}.{rest[1]}"
    own_folder = len(module) > 2 and rest[1:2] == [module[1]]  # a command of several files
    if room == "commands" and rest[1:2] not in (["arguments"], ["tables"]) and not own_folder:
        return "commands know nothing of each other"
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


def circles(root: Path) -> list[list[str]]:
    """Modules that import each other, directly or around a corner."""
    names = {}
    for file in root.rglob("*.py"):
        parts = ("overt", *file.relative_to(root).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        targets = set()
        for found in imports_of(file, root):
            # `from overt.nn import ema` names a module, `from overt.nn.ema import f` a member.
            target = found.name if found.name in names else found.name.rpartition(".")[0]
            if target in names and target not in (name, "overt"):
                targets.add(target)
        graph[name] = targets
    reachable: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        waiting = list(graph[name])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += graph[module]
        reachable[name] = seen
    groups = {
        tuple(sorted(other for other in reachable[name] if name in reachable[other]))
        for name in graph
        if name in reachable[name]
    }
    return [list(group) for group in sorted(groups)]


def test_no_import_goes_against_the_direction_of_the_house() -> None:
    wrong = wrong_arrows(ROOT)
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(ROOT) == []


def test_the_page_for_people_has_the_same_rules() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| ([a-z, ]+) \|$", page, re.MULTILINE)
    documented: dict[str, set[str]] = {}
    for room, cell in rows[1:]:
        words = set(cell.split(", "))
        allowed = words - {"leaves"} | (LEAVES if "leaves" in words else set())
        for each in LEAVES if room == "each leaf" else {room}:
            documented[each] = allowed | {each}
    files = {"__init__", "__main__"}  # that are no rooms
    assert documented == {
        room: allowed | {room} for room, allowed in MAY_IMPORT.items() if room not in files
    }


def test_every_room_has_a_rule() -> None:
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    assert rooms <= set(MAY_IMPORT)


PLANTED = [
    ("nn/wrong.py", "import torch\n\nimport overt.engine.trainer\n", 3),
    ("data/images/wrong.py", "from overt import recipe\n", 1),
    ("geometry/wrong.py", "def f():\n    from overt.config import load\n", 2),
    ("viz/deep/wrong.py", "from ...engine import trainer\n", 1),
    ("metrics/wrong.py", "if TYPE_CHECKING:\n    from overt.engine.trainer import Trainer\n", 2),
    ("ops/one/wrong.py", "from overt.run import log\n", 1),
    ("files/wrong.py", "from overt.checkpoint import storage\n", 1),
    ("evaluation.py", "from overt.recipe import Recipe\n", 1),
    ("distributed.py", "from overt.health import heartbeat\n", 1),
    ("recipe.py", "from overt.config import Config\n", 1),
    ("tasks.py", "from overt.engine import trainer\n", 1),
    ("checks.py", "import torch\n", 1),
    ("recipes/one/wrong.py", "from overt.recipes.two import model\n", 1),
    ("recipes/one/wrong.py", "from ..two import model\n", 1),
    ("recipes/one/wrong.py", "from overt.engine import loader\n", 1),
    ("recipes/one/wrong.py", "from overt.run import log\n", 1),
    ("recipes/one/config.py", "import torch.nn as nn\n", 1),
    ("checkpoint/wrong.py", "from overt.run import folder\n", 1),
    ("checkpoint/wrong.py", "from overt.health import pace\n", 1),
    ("health/wrong.py", "from overt.run import log\n", 1),
    ("health/wrong.py", "if TYPE_CHECKING:\n    from overt.engine.trainer import Trainer\n", 2),
    ("run/wrong.py", "from overt.engine.trainer import Trainer\n", 1),
    ("engine/wrong.py", "from overt.recipes.one.model import Net\n", 1),
    ("engine/wrong.py", "from overt.commands.config import main\n", 1),
    ("engine/wrong.py", "from overt.tools.plan import predict\n", 1),
    ("config/wrong.py", "if True:\n    import torch\n", 2),
    ("config/wrong.py", "from overt.engine import trainer\n", 1),
    ("schedule.py", "class A:\n    import torch\n", 2),
    ("tools/plan/wrong.py", "from overt.tools.doctor import run\n", 1),
    ("tools/plan/wrong.py", "from overt.recipes.one.data import Batch\n", 1),
    ("tools/report/wrong.py", "from overt.commands import runs\n", 1),
    ("train.py", "from overt.tools.plan import predict\n", 1),
    ("api.py", "from overt.train import main\n", 1),
    ("api.py", "import torch\n", 1),
    ("engine/wrong.py", "from overt.testing import check_recipe\n", 1),
    ("cli.py", "from overt.engine import trainer\n", 1),
    ("commands/wrong.py", "from torch import Tensor\n", 1),
    ("commands/wrong.py", "from overt.commands.other import main\n", 1),
    ("commands/wrong.py", "from overt.recipes.one import estimate\n", 1),
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
    ("config/fine.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"),
    ("run/fine.py", "from overt.health.pace import Rates\n"),
    ("cli.py", "from overt.commands import config\n"),
    ("train.py", "def run():\n    import torch\n    from overt.engine import trainer\n"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_an_arrow_with_the_direction_is_let_through(name: str, source: str, tmp_path: Path) -> None:
    file = tmp_path / "overt" / name
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert wrong_arrows(tmp_path / "overt") == []


@pytest.mark.parametrize(
    "first",
    ["from overt.nn import two\n", "if TYPE_CHECKING:\n    from overt.nn.two import Two\n"],
)
def test_a_planted_circle_is_found(first: str, tmp_path: Path) -> None:
    folder = tmp_path / "overt" / "nn"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text(first)
    (folder / "two.py").write_text("def f():\n    from overt.nn.three import g\n")
    (folder / "three.py").write_text("import overt.nn.one\n")
    assert circles(tmp_path / "overt") == [["overt.nn.one", "overt.nn.three", "overt.nn.two"]]
