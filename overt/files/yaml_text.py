"""YAML of any origin, read within bounds: no bomb of aliases, no depth or size without end.

Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from overt.errors import ConfigError

LARGEST_FILE = 2**22  # bytes; a configuration has thousands
MOST_VALUES = 100_000  # after aliases are written out
DEEPEST = 50

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """Return the content of a file as a node of OmegaConf; interpolations are not resolved."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Return a text file, refused where it is not text or far too large to be a configuration."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8; expected YAML") from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{path} has more than {LARGEST_FILE:,} bytes; expected a configuration")
    return text


def parse_yaml(text: str, source: str) -> Any:
    """Return YAML as a node of OmegaConf, refused where it is not valid or would grow too large."""
    # Here, since those who only show a configuration do without it, and it takes long to import.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        refuse_bomb(text, source)
        return OmegaConf.create(text)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"{source} is not valid YAML: {reason}") from None
    except AssertionError:  # of OmegaConf: a single number or truth value
        raise ConfigError(f"{source} holds a single value; expected keys and values") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deep; up to {DEEPEST} levels") from None


def read_words(path: Path) -> Any:
    """Return the plain content of a file with every word as it is typed, but `null`.

    YAML makes numbers of words that other programs mean as text: `24:00:00` is 86400, `0123` is 83.
    """
    read_yaml(path)  # which refuses what is not valid, or would grow without end
    loader = _WordLoader(read_text(path))
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _WordLoader(yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader of a language whose only words with a meaning are `null` and `<<`."""


_WordLoader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0].rpartition(":")[2] in ("null", "merge")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def own_values(text: str) -> Any:
    """Return the plain values of YAML that overt wrote, in a tenth of the time of `parse_yaml`."""
    loader = Loader(text)  # the safe one: it builds plain values only
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def refuse_bomb(text: str, source: str) -> None:
    """Refuse YAML that would grow or nest without end when it is read."""
    brackets = text.count("[") + text.count("{")
    if "&" not in text and brackets <= DEEPEST and text.count("\n") <= MOST_VALUES:
        return  # no anchors, and no depth but by indentation
    values = _expanded_size(text)
    if values > MOST_VALUES:
        raise ConfigError(
            f"{source} expands to {values:,} values with its aliases; up to {MOST_VALUES:,} are "
            "allowed"
        )


def _expanded_size(text: str) -> int:
    """Count the values with every alias written out, from the events: nothing is built."""
    sizes: dict[str, int] = {}  # by anchor
    open_nodes: list[tuple[str | None, int]] = []  # anchor and size so far, outermost first
    total = 0
    for event in yaml.parse(text, Loader=Loader):
        size = 0
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise RecursionError  # a list that holds itself
            size = sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            if len(open_nodes) > DEEPEST:
                raise RecursionError
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = size
        if size and open_nodes:
            anchor, before = open_nodes[-1]
            open_nodes[-1] = (anchor, before + size)
        elif size:
            total += size
    return total
