"""`overt recipes [WORD]`: list what can be trained, one line each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from overt.commands.arguments import add_package_option
from overt.config import CONF, add_package
from overt.config.explain import first_sentence
from overt.errors import ConfigError, nearest


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt recipes",
        description=__doc__,
    )
    parser.add_argument("word", nargs="?", default="", help="only names that contain this text")
    add_package_option(parser)
    options = parser.parse_args(arguments)
    folders = [CONF]
    for folder in options.package:
        add_package(folder)
        folders.append(Path(folder) / "conf")
    summaries = {
        file.stem: first_sentence(file)
        for root in folders
        for file in (root / "recipe").glob("*.yaml")
    }
    chosen = {name: text for name, text in summaries.items() if options.word in name}
    if not chosen:
        hint = nearest(options.word, sorted(summaries))
        raise ConfigError(f"no recipe has {options.word!r} in its name{hint}")
    width = max(map(len, chosen))
    for name in sorted(chosen):
        print(f"{name:<{width}}  {chosen[name]}")
    print("\ntrain one: overt train recipe=NAME; see its settings: overt config recipe=NAME")
    return 0
