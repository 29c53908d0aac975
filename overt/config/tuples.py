"""Settings whose fields are typed as tuples: OmegaConf fills them with lists, of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

from overt.errors import ConfigError


def make_tuples(part: Any, key: str = "") -> None:
    """Turn lists into tuples where a dataclass below `part` has such a field; check their length.

    A tuple can be compared with one, and be a key.
    """
    kind: type = type(part)
    tuples = _tuples_of(kind) if is_dataclass(part) else {}
    for name, child in _children(part):
        where = f"{key}.{name}".lstrip(".")
        make_tuples(child, where)
        types = tuples.get(name)
        if types is None or not isinstance(child, list):
            continue
        count = None if Ellipsis in types else len(types)
        if count is not None and len(child) != count:
            raise ConfigError(f"{where}={child} has {len(child)} values; expected {count}")
        object.__setattr__(part, name, tuple(child))  # of a frozen dataclass, too


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, dict):
        yield from ((str(name), child) for name, child in part.items())
    elif isinstance(part, list):
        yield from ((str(index), child) for index, child in enumerate(part))
    elif is_dataclass(part):
        yield from ((field.name, getattr(part, field.name)) for field in fields(part))


@lru_cache(maxsize=256)
def _tuples_of(kind: type) -> dict[str, tuple[Any, ...]]:
    """Return the types of the values of each field that is a tuple, or a tuple or null."""
    tuples = {}
    for name, hint in get_type_hints(kind).items():
        for option in (hint, *get_args(hint)):
            if get_origin(option) is tuple:
                tuples[name] = get_args(option)
    return tuples
