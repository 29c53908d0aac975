"""Keyword arguments of the functions that users call, refused by name where they are misspelled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from overt.errors import ConfigError, nearest

P = ParamSpec("P")
R = TypeVar("R")


def no_hint(name: str) -> str:
    return ""


def checked_keywords(
    hint: Callable[[str], str] = no_hint,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse an unknown keyword with the nearest one, where Python names none.

    `hint` returns what to write instead of a keyword that belongs elsewhere, or nothing.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        allowed = [
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and parameter.name != "self"
        ]

        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            for name in keywords:
                if name not in allowed:
                    instead = hint(name) or nearest(name, allowed)
                    raise ConfigError(
                        f"unknown argument {name}{instead}; allowed: {', '.join(allowed)}"
                    )
            return function(*arguments, **keywords)

        return call

    return decorate
