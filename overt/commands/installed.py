"""Verbs of installed packages, by an entry point; nothing is imported before a verb is asked for.

[project.entry-points."overt.commands"]
label = "lab_overt.label:main"              overt label ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from overt.errors import OvertError

COMMANDS = "overt.commands"
Command = Callable[[Sequence[str]], int]


@cache
def installed_commands() -> dict[str, EntryPoint]:
    """Return the verbs of installed packages."""
    return {entry.name: entry for entry in entry_points(group=COMMANDS)}


def load_command(entry: EntryPoint) -> Command:
    """Import the function of a verb; it takes words and returns an exit code."""
    try:
        command: Command = entry.load()
    except (ImportError, AttributeError) as error:
        raise OvertError(
            f"the verb {entry.name} of {_owner(entry)} cannot be imported ({entry.value}): {error}"
        ) from error
    if not callable(command):
        raise OvertError(
            f"the verb {entry.name} of {_owner(entry)} is {entry.value}, which is not a function; "
            "expected MODULE:FUNCTION that takes a list of words and returns an exit code"
        )
    return command


def owner_in_words(entry: EntryPoint) -> str:
    """Return what a list of verbs says of a verb."""
    return f"of {_owner(entry)}"


def _owner(entry: EntryPoint) -> str:
    return f"the installed package {entry.dist.name}" if entry.dist else "an installed package"
