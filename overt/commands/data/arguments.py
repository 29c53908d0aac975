"""Arguments that the verbs of `overt data` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from overt.commands.arguments import finite_number, whole_number

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

positive = whole_number(1)
not_negative = whole_number(0)
side_length = whole_number(16, "pixels")
speed = finite_number(0)


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Adds defaults to the help; None and False would tell a reader nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False) and "default" not in (action.help or "")
        return super()._get_help_string(action) if has_default else action.help


def add_verb(
    verbs: Verbs,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    show_defaults: bool = True,
    **folders: str,  # positional arguments, and what each is
) -> argparse.ArgumentParser:
    shown = _Defaults if show_defaults else argparse.HelpFormatter
    parser = verbs.add_parser(name, help=help, description=description, formatter_class=shown)
    for folder, meaning in folders.items():
        parser.add_argument(folder, type=Path, metavar=folder.upper(), help=meaning)
    parser.set_defaults(run=run)
    return parser


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the random data")
