"""Show a configuration instead of training: Hydra's --cfg and --info, for `config` and `train`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from omegaconf import OmegaConf

from overt.config.checked import NO_DATA
from overt.config.compose import CONF, chosen_options, load
from overt.errors import ConfigError
from overt.terminal import columns, paint

INFORMATION = ("all", "defaults", "searchpath")


def add_hydra_options(parser: argparse.ArgumentParser) -> None:
    """Add --cfg and --info, which print and exit."""
    parser.add_argument("--cfg", choices=("job",), help="print the configuration and exit")
    parser.add_argument(
        "--info", nargs="?", const="all", choices=INFORMATION,
        help="print the chosen option of each group and the search path, and exit",
    )  # fmt: skip


def with_default_values(arguments: Sequence[str]) -> list[str]:
    """Return the words with the value of --info and --explain that a user may omit.

    argparse would take the KEY=VALUE after them as this value.
    """
    defaults = {"--info": "--info=all", "--explain": "--explain="}
    words = list(arguments)
    for index, following in enumerate(words[1:]):
        if "=" in following:
            words[index] = defaults.get(words[index], words[index])
    return words


def show(options: argparse.Namespace) -> None:
    """Print what --info asks for, else the configuration."""
    if not options.info:
        print(_text(options), end="")
        return
    if options.config:
        raise ConfigError("--info is for composed configurations; --config FILE is one already")
    chosen = chosen_options(options.overrides, options.package)
    if options.info in ("all", "defaults"):
        print(paint("chosen options", "bold"))
        print("\n".join(columns([[f"  {group}", name] for group, name in chosen.items()])))
    if options.info in ("all", "searchpath"):
        print(paint("search path", "bold"))
        print("\n".join(f"  {path}" for path in [CONF, *options.package]))


def _text(options: argparse.Namespace) -> str:
    """Return the configuration as YAML; what is missing of the data stays `???`."""
    given = (options.overrides, options.config, options.package)
    try:
        return load(*given).text
    except ConfigError as error:
        refused = error
    try:
        config = OmegaConf.create(load(*given, needs_data=False).text)
    except ConfigError:
        raise refused from None
    for key, value in config.data.items():
        if value == NO_DATA:
            config.data[key] = "???" if f"data.{key}" in str(refused) else None
    print(f"before training: {refused}", file=sys.stderr)
    return OmegaConf.to_yaml(config)
