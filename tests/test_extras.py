"""Optional packages: each has its extra, is imported only where it is used, and is asked for by it.

Which packages there are is read from pyproject.toml; where they are imported, from the source.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import overt
from overt.data.images.digits import load_digits
from overt.errors import OvertError
from overt.geometry.body_anny import build_anny_body

ROOT = Path(overt.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
# Names under which packages are imported, where these differ from the names of their projects.
IMPORTED_AS = {
    "hydra-core": "hydra", "pillow": "PIL", "scikit-learn": "sklearn", "mlflow-skinny": "mlflow",
    "pyyaml": "yaml", "opencv-python-headless": "cv2",
}  # fmt: skip
WITH_TORCH = {"triton"}  # comes with torch where there are GPUs; the plain twins need none
FOR_SPEED = {"scipy"}  # a slower definition stands in: nothing is refused


def imports_of(requirements: list[str]) -> set[str]:
    projects = {re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0] for line in requirements}
    return {IMPORTED_AS.get(project, project) for project in projects}


EXTRAS = {
    name: imports_of(requirements)
    for name, requirements in PROJECT["optional-dependencies"].items()
    if name != "dev"
}
NEEDED = imports_of(PROJECT["dependencies"])


def extra_of(package: str) -> str | None:
    return next((name for name, packages in EXTRAS.items() if package in packages), None)


def optional_imports(tree: ast.AST, at_start: bool = True) -> Iterator[tuple[str, bool]]:
    """Packages imported that are neither Python's, nor overt's, nor always installed."""
    names: list[str] = []
    if isinstance(tree, ast.Import):
        names = [alias.name for alias in tree.names]
    elif isinstance(tree, ast.ImportFrom) and not tree.level:
        names = [tree.module or ""]
    for name in names:
        package = name.partition(".")[0]
        if package not in {*sys.stdlib_module_names, "overt", *NEEDED, *WITH_TORCH}:
            yield package, at_start
    inside = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(tree):
        yield from optional_imports(child, at_start and not inside)


def test_every_optional_import_has_an_extra_that_its_refusal_names() -> None:
    # Within the test: at its import, every worker of a session would parse every file.
    for file in sorted(ROOT.rglob("*.py")):
        for package, at_start in optional_imports(ast.parse(file.read_text())):
            extra = extra_of(package)
            assert extra is not None, f"{file} imports {package}; pyproject.toml does not name it"
            assert not at_start, f"{file} imports {package} at its start, not where it is used"
            texts = "".join(other.read_text() for other in file.parent.glob("*.py"))
            asked_for = f"pip install 'overt[{extra}]'" in texts
            assert package in FOR_SPEED or asked_for, f"{file} does not ask for overt[{extra}]"


def test_every_extra_that_is_named_exists() -> None:
    pages = [ROOT.parent / "README.md", *(ROOT.parent / "docs").glob("*.md")]
    for file in [*ROOT.rglob("*.py"), *ROOT.rglob("*.md"), *pages]:
        for named in re.findall(r"overt\[(\w+)\]", file.read_text()):
            assert named in {*EXTRAS, "dev"}, f"{file} names the extra {named}, which is not there"


def test_what_runs_in_the_tests_is_of_the_version_that_users_get() -> None:
    extras = PROJECT["optional-dependencies"]
    users = {line for name, lines in extras.items() if name != "dev" for line in lines}
    for line in extras["dev"]:
        if imports_of([line]) & imports_of(list(users)):
            assert line in users


REFUSALS: list[tuple[str, Callable[[], object]]] = [
    ("sklearn", load_digits),
    ("anny", build_anny_body),
]


@pytest.mark.parametrize(("package", "use"), REFUSALS, ids=[name for name, _ in REFUSALS])
def test_without_the_package_the_user_is_told_what_to_install(
    package: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it were not installed: also its parts that another test has imported before.
    for name in [one for one in sys.modules if one.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OvertError) as caught:
        use()
    assert f"pip install 'overt[{extra_of(package)}]'" in str(caught.value)
