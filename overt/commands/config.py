"""`overt config recipe=NAME ...`: show the configuration of a run, and explain its keys."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from omegaconf import OmegaConf

from overt.commands.arguments import config_options
from overt.config import load, schema_of
from overt.config.explain import explanations
from overt.errors import ConfigError, nearest

ABSENT = object()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt config", description=__doc__, parents=[config_options()]
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        "--explain", nargs="?", const="", metavar="KEY", help="explain every key, or KEY"
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
        raise ConfigError(f"--explain {options.explain}: no such key{hint}")
    for key in chosen:
        value = OmegaConf.select(values, key, default=ABSENT)
        # What the engine fills in is not part of a configuration.
        if value is not ABSENT and not OmegaConf.is_dict(value):
            print(f"{key} = {value}\n    {meanings[key]}")
    return 0
