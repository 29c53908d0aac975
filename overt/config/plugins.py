"""Packages that are installed and say of themselves that they extend overt, by an entry point.

    [project.entry-points."overt.packages"]      classes and YAML files, as with --package
    lab = "lab_overt"

Nothing of a package is imported before something of it is asked for. Never imports torch.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from overt.errors import ConfigError

PACKAGES = "overt.packages"


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


def _owner(entry: EntryPoint) -> str:
    return f"the installed package {entry.dist.name}" if entry.dist else "an installed package"
