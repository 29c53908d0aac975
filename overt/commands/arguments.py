"""Options that several commands share: those of a trained model, and types of numbers.

Parents for `argparse.ArgumentParser(parents=[...])`; positional arguments stay with each command.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overt.config import Config

PARTS = ("auto", "model", "ema")

LARGEST_NUMBER = 10**12  # of an option that counts something


def _parent() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(add_help=False)


def _add_config(parent: argparse.ArgumentParser) -> None:
    parent.add_argument("--config", help="start from a resolved config.yaml instead of composing")


def add_package_option(parent: argparse.ArgumentParser) -> None:
    """Add --package, for recipes outside of overt."""
    parent.add_argument(
        "--package", action="append", default=[], help="folder of your own recipe; repeatable"
    )


def _add_recipe(parent: argparse.ArgumentParser, note: str) -> None:
    text = f"{note}recipe of the weights; a checkpoint folder stores it"
    parent.add_argument("--recipe", help=text)


def _add_part(parent: argparse.ArgumentParser, parts: Sequence[str]) -> None:
    parent.add_argument(
        "--part", choices=tuple(parts), default=parts[0], help="auto: ema if the checkpoint has one"
    )


def _add_rename(parent: argparse.ArgumentParser) -> None:
    parent.add_argument(
        "--rename",
        nargs=2,
        action=_AddKeyRule,
        default=[],
        metavar=("MATCH", "TO"),
        help="third-party weights: replace a regular expression in their keys; null drops these "
        "keys; repeatable",
    )


class _AddKeyRule(argparse.Action):
    """Collects the rules of --rename, as `load_checkpoint(rename=...)` takes them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        match, to = values
        rules = [*getattr(namespace, self.dest), (match, None if to == "null" else to)]
        setattr(namespace, self.dest, rules)


def config_options() -> argparse.ArgumentParser:
    """--config and --package: where a configuration comes from, as for `overt train`."""
    parent = _parent()
    _add_config(parent)
    add_package_option(parent)
    return parent


def evaluation_options() -> argparse.ArgumentParser:
    """--package, --part and --rename: a trained model whose checkpoint is named by a word."""
    parent = _parent()
    add_package_option(parent)
    _add_part(parent, PARTS)
    _add_rename(parent)
    return parent


def export_options() -> argparse.ArgumentParser:
    """--part, --recipe, --package and --rename: only ONNX needs the checkpoint's recipe."""
    parent = _parent()
    text = "default: model; hub: ema if there is one"
    parent.add_argument("--part", choices=PARTS[1:], help=text)
    _add_rename(parent)
    _add_recipe(parent, "onnx: ")
    add_package_option(parent)
    return parent


def model_options(default: str | None = None) -> argparse.ArgumentParser:
    """--checkpoint, --recipe, --part, --package and --rename: a trained model.

    `default` says in the help which weights are used without --checkpoint; else it is required.
    """
    parent = _parent()
    more = "" if default is None else f"; default: {default}"
    parent.add_argument(
        "--checkpoint", type=Path, required=default is None, help=f"weights, file or folder{more}"
    )
    _add_recipe(parent, "")
    _add_part(parent, PARTS)
    _add_rename(parent)
    add_package_option(parent)
    return parent


def configure_model(
    checkpoint: Path, recipe: str | None, overrides: Sequence[str], packages: Sequence[str]
) -> Config:
    """Return the configuration of a trained model, whose recipe `--recipe` or the checkpoint names.

    No data set has to be named: none is read.
    """
    from overt.checkpoint.trained import (
        configure,  # Hydra: not for commands without a configuration
    )

    named = [] if recipe is None else [f"recipe={recipe}"]
    return configure(checkpoint, [*named, *overrides], packages, "--recipe NAME", needs_data=False)


def whole_number(least: int, unit: str = "", most: int = LARGEST_NUMBER) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        # A ValueError would be shown with the name of this function instead of what is allowed.
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or number < least:
            raise argparse.ArgumentTypeError(
                f"{text} is not a whole number{unit and f' of {unit}'} of at least {least}"
            )
        if number > most:
            raise argparse.ArgumentTypeError(f"{text[:20]} is too large; up to {most:,} is allowed")
        return number

    return parse


def finite_number(
    least: float, above: bool = False, most: float = math.inf
) -> Callable[[str], float]:
    """Return the type of an option: a finite number from `least` (or above it) to `most`."""
    bound = f"{'above' if above else 'of at least'} {least:g}"
    if most < math.inf:
        bound = f"{bound} and at most {most:g}" if above else f"from {least:g} to {most:g}"

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        large_enough = number > least if above else number >= least
        if not math.isfinite(number) or not large_enough or number > most:
            raise argparse.ArgumentTypeError(f"{text} is not a number {bound}")
        return number

    return parse
