"""`overt examples [NAME]`: list the examples of this version, or copy one to start from."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from overt.errors import ConfigError, DataError, nearest
from overt.files.shipped import shipped, title


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt examples",
        description=__doc__,
    )
    parser.add_argument("name", nargs="?", help="the example to copy")
    parser.add_argument("--out", type=Path, help="the new folder; default: NAME")
    options = parser.parse_args(arguments)
    folders = {page.parent.name: page.parent for page in shipped("examples").glob("*/README.md")}
    if options.name is None:
        width = max(map(len, folders))
        for name in sorted(folders):
            print(f"{name:<{width}}  {title(folders[name] / 'README.md')}")
        print("\ncopy one: overt examples NAME")
        return 0
    if options.name not in folders:
        hint = nearest(options.name, list(folders))
        raise ConfigError(
            f"no example is called {options.name!r}{hint}; `overt examples` lists all"
        )
    target = options.out or Path(options.name)
    if target.exists():
        raise DataError(f"{target} exists; choose another folder with --out")
    is_package = (folders[options.name] / "__init__.py").is_file()
    if is_package and not target.name.isidentifier():
        raise ConfigError(
            f"--out {target}: this example is a Python package, whose name has letters, digits and "
            "underscores only; choose another name, such as my_recipe"
        )
    shutil.copytree(
        folders[options.name], target, ignore=shutil.ignore_patterns("__pycache__", "runs")
    )
    fit_to_folder(target, options.name)
    print(f"copied to {target}; start with {target / 'README.md'}")
    return 0


def fit_to_folder(copy: Path, name: str) -> None:
    """Let the commands of a copied example name its new folder, and its imports its new package."""
    package = rf"((?:\bfrom|\bimport|:) ){name}(?=\.| import)"
    for file in copy.rglob("*"):
        if file.suffix not in (".md", ".py", ".yaml"):
            continue
        text = file.read_text(encoding="utf-8")
        changed = re.sub(rf"examples/{name}\b", lambda _: shlex.quote(str(copy)), text)
        if file.suffix != ".md":
            changed = re.sub(package, rf"\g<1>{copy.name}", changed)
        if changed != text:
            file.write_text(changed, encoding="utf-8")
