"""`overt config recipe=NAME ...`: show the configuration of a run, and explain its keys.

Without a recipe: the groups and what each offers. --cfg and --info work as in Hydra.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from omegaconf import OmegaConf

from overt.commands.arguments import config_options
from overt.config import RECIPE_SECTIONS, group_options, load, schema_of
from overt.config.choices import ADVICE, CHOICES
from overt.config.explain import explanations, first_sentence
from overt.config.show import add_hydra_options, show, with_default_values
from overt.errors import ConfigError, nearest
from overt.terminal import columns, paint

ABSENT = object()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt config",
        description=__doc__,
        parents=[config_options()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--explain", nargs="?", const="", metavar="KEY",
        help="explain every key, or KEY, and when to choose which value",
    )  # fmt: skip
    add_hydra_options(parser)
    options = parser.parse_intermixed_args(with_default_values(arguments))
    has_recipe = options.config or any(
        word.partition("=")[0] in ("recipe", "+recipe") for word in options.overrides
    )
    if options.explain is not None:
        _explain(options, bool(has_recipe))
    elif not has_recipe and not options.overrides:
        _list_groups(options)
    else:
        show(options)
    return 0


def _list_groups(options: argparse.Namespace) -> None:
    """Print each group and its options; those with a sentence have it beside them."""
    for group, files in group_options(options.package).items():
        print(paint(group, "bold"))
        rows = [[f"  {file.stem}", first_sentence(file)] for file in files]
        print("\n".join(columns(rows)))
    print(
        "\nchoose by GROUP=NAME, such as: overt config recipe=hjepa_tiny optimizer=muon\n"
        "change single keys by KEY=VALUE; `overt config --explain KEY` says what they mean"
    )


def _explain(options: argparse.Namespace, has_recipe: bool) -> None:
    """Print meaning, value and advice of a key, of a section, or of all."""
    if has_recipe or options.overrides:
        config = load(options.overrides, options.config, options.package, needs_data=False)
        schema, values = schema_of(config), OmegaConf.create(config.text)
    else:  # the engine's own keys need no recipe
        schema, values = schema_of(None), None
    known: dict[str, tuple[str, object]] = {}
    for section, kind in schema.items():
        for name, text in explanations(kind).items():
            key = f"{section}.{name}" if section else name
            value = ABSENT if values is None else OmegaConf.select(values, key, default=ABSENT)
            may_be_section = key in (*schema, *RECIPE_SECTIONS)
            # What the engine fills in is not part of a configuration.
            is_key = value is not ABSENT and not (may_be_section and OmegaConf.is_dict(value))
            if is_key or (values is None and not may_be_section):
                known[key] = (text, value)
    chosen = [
        key
        for key in known
        if options.explain in ("", key) or key.startswith(options.explain + ".")
    ]
    if not chosen:
        hint = nearest(options.explain, [*known, *filter(None, schema)])
        more = "" if has_recipe else "; keys of a recipe need recipe=NAME"
        raise ConfigError(f"--explain {options.explain}: no such key{hint}{more}")
    for key in chosen:
        text, value = known[key]
        shown = paint(key, "bold") + ("" if value is ABSENT else f" = {value}")
        print(f"{shown}\n    {text}")
        _advise(key, value)


def _advise(key: str, value: object) -> None:
    """Print when to choose which value."""
    rows = []
    for choice, words in CHOICES.get(key, {}).items():
        is_now = value is not ABSENT and choice == ("null" if value is None else str(value))
        rows.append([f"    {'*' if is_now else ' '} {choice}", words])
    lines = columns(rows)
    if key in ADVICE:
        lines.append(f"    {ADVICE[key]}")
    if lines:
        print("\n".join(lines))
