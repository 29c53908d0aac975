"""Packages that are installed and say of themselves that they extend overt, by entry points.

    [project.entry-points."overt.packages"]      classes and YAML files, as with --package
    lab = "lab_overt"

    [project.entry-points."overt.commands"]      verbs of the command line
    label = "lab_overt.label:main"

Nothing of a package is imported before something of it is asked for. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from overt.errors import ConfigError

PACKAGES, COMMANDS = "overt.packages", "overt.commands"
Command = Callable[[Sequence[str]], int]


@cache
def installed_packages() -> dict[str, Path]:
    """Return the packages whose classes a configuration may name, and their folders."""
    packages = {}
    for entry in sorted(entry_points(group=PACKAGES), key=lambda entry: entry.value):
        if "." in entry.value or ":" in entry.value or not entry.value.isidentifier():
            raise ConfigError(
                f"{_owner(entry)} declares {entry.value!r} for {PACKAGES}; expected the name of a "
                "top-level package. Correct its pyproject.toml, or uninstall it"
            )
        spec = find_spec(entry.value)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"{_owner(entry)} declares the package {entry.value} for {PACKAGES}, and there is "
                "no such package; install it again"
            )
        packages[entry.value] = Path(spec.submodule_search_locations[0])
    return packages


@cache
def installed_commands() -> dict[str, EntryPoint]:
    """Return the verbs of installed packages."""
    return {entry.name: entry for entry in entry_points(group=COMMANDS)}


def load_command(entry: EntryPoint) -> Command:
    """Import the function of a verb; it takes words and returns an exit code."""
    try:
        command: Command = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the verb {entry.name} of {_owner(entry)} cannot be imported ({entry.value}): {error}"
        ) from error
    if not callable(command):
        raise ConfigError(
            f"the verb {entry.name} of {_owner(entry)} is {entry.value}, which is not a function; "
            "expected MODULE:FUNCTION that takes a list of words and returns an exit code"
        )
    return command


def owner_in_words(entry: EntryPoint) -> str:
    """Return what a list of verbs says of a verb."""
    return f"of {_owner(entry)}"


def _owner(entry: EntryPoint) -> str:
    return f"the installed package {entry.dist.name}" if entry.dist else "an installed package"
