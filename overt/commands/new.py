"""`overt new NAME [--out FOLDER]`: write a recipe folder that trains right away.

A Python package with settings, data, model, loss, its YAML file, a tiny version and a test. Exit
code 2: invalid name or folder.
"""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from overt.config import CONF
from overt.errors import OvertError

# File of the recipe folder to its template; both may hold names.
FILES = {
    "__init__.py": "__init__.py",
    "config.py": "config.py",
    "recipe.py": "recipe.py",
    "conf/recipe/${name}.yaml": "recipe.yaml",
    "conf/recipe/${name}_tiny.yaml": "recipe_tiny.yaml",
    "README.md": "README.md",
    "tests/test_${name}.py": "test.py",
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt new",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="name of the recipe, such as my_method")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="new folder, a Python package (default: NAME)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    folder: Path = options.out or Path(options.name)
    problem = refusal(options.name, folder)
    if problem is not None:
        parser.error(problem)
    try:
        write(options.name, folder)
    except OSError as error:
        raise OvertError(f"{folder} cannot be written: {error}; choose another --out") from error
    print(f"wrote {len(FILES)} files to {folder}; now\n")
    quoted = shlex.quote(str(folder))
    print(f"  overt train recipe={options.name}_tiny --package {quoted}")
    print(f"  python -m pytest {quoted}")
    return 0


def refusal(name: str, folder: Path) -> str | None:
    """Return why a recipe of this name cannot be written to this folder."""
    package = folder.resolve().name
    for word, source in ((name, "NAME"), (package, "the folder of --out")):
        if not re.fullmatch(r"[A-Za-z]\w*", word, re.ASCII) or keyword.iskeyword(word):
            return (
                f"{source} is {word!r}; use a Python name that begins with a letter and has "
                "letters, digits and underscores, such as my_method"
            )
    if folder.exists():
        return f"{folder} exists; choose another NAME, or a new folder with --out"
    shipped = {file.stem for file in (CONF / "recipe").glob("*.yaml")}
    if {name, f"{name}_tiny"} & shipped:
        return f"overt has a recipe {name} already; choose another NAME"
    installed = find_spec(package)
    if installed is not None and installed.origin is not None:
        return (
            f"a Python module {package} is installed ({installed.origin}), and a package of "
            "that name would hide it; choose another NAME, or another folder with --out"
        )
    return None


def write(name: str, folder: Path) -> None:
    """Fill in the templates."""
    words = {
        "name": name,
        "package": folder.resolve().name,
        "folder": str(folder),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
    }
    templates = files("overt") / "templates" / "recipe"
    for file, source in FILES.items():
        path = folder / Template(file).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (templates / f"{source}.template").read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(words), encoding="utf-8")
