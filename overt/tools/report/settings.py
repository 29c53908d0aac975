"""The stored configuration of a run, flat, for those who only show it. Imports no torch.

Parsed in C, and of a run in a list only the five keys that its line needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from overt.errors import ConfigError
from overt.files.yaml_text import Loader, read_text, refuse_bomb

# What YAML of any origin can make its reader raise.
UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError)
FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
SECTION = re.compile(r"(?m)^(?=\S)")  # a line that is not indented begins one
KEY = re.compile(r"\w+:(?=[ \n])")
NAME = re.compile(r"exp_name: ([A-Za-z]\w*[0-9_]\w*)\n")  # no word that YAML takes for a value
KEPT_SECTIONS = 512
LINE = re.compile(r"( *)([\w.]+):(?: (.*))?")


class _Loader(Loader):  # type: ignore[misc]
    """Reads 1e-4 as a number, as OmegaConf does."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def read_config(path: Path) -> dict[str, Any]:
    """Return the resolved configuration, dotted key to value; empty where it cannot be read."""
    try:
        text = read_text(path)
        refuse_bomb(text, str(path))
        leaves: dict[str, Any] = {}
        for part in _parts(text):
            leaves.update(_read_part(part))
        return leaves
    except (ConfigError, *UNREADABLE):
        return {}


def _parts(text: str) -> list[str]:
    """Split a configuration as overt writes it into its sections; any other YAML stays whole.

    Runs of one study share most sections, and a section that was read before costs nothing.
    """
    parts = [part for part in SECTION.split(text) if part]
    apart = all(KEY.match(part) for part in parts)
    keys = {part.partition(":")[0] for part in parts}
    if apart and len(keys) == len(parts) and "&" not in text and "*" not in text:
        return parts
    return [text]


@lru_cache(maxsize=KEPT_SECTIONS)
def _read_part(text: str) -> tuple[tuple[str, Any], ...]:
    """Return the leaves of a mapping, dotted key and value; shared, so they must not be changed."""
    name = NAME.fullmatch(text)
    if name is not None:  # the line that differs between all runs
        return (("exp_name", name[1]),)
    loader = _Loader(text)
    try:
        values = loader.get_single_data()
    finally:
        loader.dispose()
    return tuple(_leaves(values)) if isinstance(values, dict) else ()


def read_some(path: Path, keys: frozenset[str]) -> dict[str, Any]:
    """Return some keys of a configuration that overt wrote, one to a line."""
    try:
        text = read_text(path)
    except ConfigError:
        return {}
    values: dict[str, Any] = {}
    for part in SECTION.split(text):
        section_values = _section_values(part, keys)
        if section_values is None:
            return read_config(path)
        values.update(section_values)
    return values


@lru_cache(maxsize=KEPT_SECTIONS)
def _section_values(text: str, keys: frozenset[str]) -> tuple[tuple[str, Any], ...] | None:
    """Return some keys of one section; None where it is not as overt writes it."""
    section, colon, rest = text.partition(":")
    if not colon or not rest.startswith("\n"):  # `training: {num_steps: 40}` in one line
        return None if rest.startswith(" {") else ()
    values = []
    for line in rest.splitlines():
        match = LINE.fullmatch(line)
        if match is not None:
            indent, name, value = match.groups()
            if len(indent) == 2 and f"{section}.{name}" in keys and value is not None:
                values.append((f"{section}.{name}", _scalar(value)))
    return tuple(values)


def _scalar(text: str) -> Any:
    if text == "null":
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text.strip("'\"")


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield _printable(prefix), _printable(values) if isinstance(values, str) else values


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()
