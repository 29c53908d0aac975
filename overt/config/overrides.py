"""KEY=VALUE words of a command line, as Hydra reads them."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from overt.errors import ConfigError

RECIPES = Path(__file__).parents[1] / "conf" / "recipe"
SYNTAX = set("""()[]{},='"\\""")  # means something in a value


def parse_override(text: str) -> Override:
    """Read one word; refused with the quotes that it lacks, if those are what is wrong.

    A value such as `bilder/müller`, which Hydra's grammar lacks letters for, is read as it is.
    """
    key, _, value = text.partition("=")
    if not value.isascii() and not SYNTAX & set(value):
        text = f'{key}="{value}"'
    try:
        return _parse(text)
    except HydraException as error:
        raise ConfigError(
            f"cannot read {text!r} on the command line; {_remedy(text)} "
            f"({str(error).splitlines()[0]})"
        ) from error


def quoted(text: str, mark: str = "'") -> str:
    """Return a value that Hydra reads as this text: in quotes unless it is plain."""
    try:
        if _parse(f"key={text}").value() == text and not re.search(r"\s", text):
            return text
    except HydraException:  # such as a letter that is not ASCII, or a parenthesis
        pass
    # Backslashes count only where a quote follows them.
    escaped = re.sub(rf"(\\*)({mark}|$)", lambda end: _escape(end[1], end[2]), text)
    return f"{mark}{escaped}{mark}"


def _escape(backslashes: str, mark: str) -> str:
    return 2 * backslashes + (f"\\{mark}" if mark else "")


def _remedy(text: str) -> str:
    key, _, value = text.partition("=")
    value_in_quotes = quoted(value, '"')
    word = f"{key}={value_in_quotes}"
    if value and "'" not in word:  # single quotes are for the shell
        try:
            _parse(word)
        except HydraException:
            pass
        else:
            return f"put the value in quotes: '{word}'"
    if re.fullmatch(r"\w+", text) and (RECIPES / f"{text}.yaml").is_file():
        return f"write recipe={text}"
    return "write KEY=VALUE, for example training.num_steps=1000"


def _parse(text: str) -> Override:
    return OverridesParser.create().parse_override(text)
