"""`overt examples [NAME]`: list the examples of this version, or copy one to start from."""

from __future__ import annotations

import argparse
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
    shutil.copytree(
        folders[options.name], target, ignore=shutil.ignore_patterns("__pycache__", "runs")
    )
    print(f"copied to {target}; start with {target / 'README.md'}")
    return 0
