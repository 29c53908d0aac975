"""`overt config recipe=NAME ...`: the configuration a run would have, and what each key means."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from dataclasses import fields

from omegaconf import OmegaConf

from overt.commands.arguments import config_options
from overt.config import load, schema_of
from overt.errors import ConfigError, nearest

ABSENT = object()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt config", description=__doc__, parents=[config_options()]
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        "--explain", nargs="?", const="", metavar="KEY", help="say what every key, or KEY, means"
    )
    options = parser.parse_intermixed_args(arguments)
    config = load(options.overrides, options.config, options.package)
    if options.explain is None:
        print(config.text, end="")
        return 0
    meanings = {}
    for section, kind in schema_of(config).items():
        for name, text in explanations(kind).items():
            meanings[f"{section}.{name}" if section else name] = text
    values = OmegaConf.create(config.text)
    chosen = [
        key
        for key in meanings
        if options.explain in ("", key) or key.startswith(options.explain + ".")
    ]
    if not chosen:
        hint = nearest(options.explain, list(meanings))
        raise ConfigError(f"--explain {options.explain}: there is no such key{hint}")
    for key in chosen:
        value = OmegaConf.select(values, key, default=ABSENT)
        # What the engine fills in is not part of a configuration.
        if value is not ABSENT and not OmegaConf.is_dict(value):
            print(f"{key} = {value}\n    {meanings[key]}")
    return 0


def explanations(kind: type) -> dict[str, str]:
    """Field name to `type: explanation`, the comment lines above or behind it in the source."""
    meanings: dict[str, str] = {}
    names = {field.name for field in fields(kind) if field.init}
    # A base class describes the fields it declares.
    for base in reversed(kind.__mro__):
        if "__annotations__" not in vars(base) or base.__module__ == "builtins":
            continue
        comments: list[str] = []
        for line in inspect.getsource(base).splitlines()[1:]:
            text = line.strip()
            if text.startswith("#"):
                comments.append(text.lstrip("# "))
                continue
            name, separator, rest = text.partition(":")
            if separator and name in names:
                hint, _, behind = rest.partition("  # ")
                kind_of_value = hint.partition("=")[0].strip()
                words = " ".join([*comments, behind.strip()]).strip()
                meanings[name] = f"{kind_of_value}: {words}" if words else kind_of_value
            comments = []
    return meanings
