"""Checks of settings, each of which refuses a value with its key, what is allowed and what to do.

Every check of a number refuses NaN and Inf. Imports neither torch nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from overt.errors import ConfigError, nearest


def finite(key: str, value: float, or_null: bool = False) -> None:
    """Refuse NaN, Inf, and whole numbers beyond what a float can hold."""
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        raise ConfigError(f"{key} has {len(str(value))} digits; use a smaller number") from None
    if not is_finite:
        remedy = "a finite number, or null" if or_null else "a number such as 1e-4"
        raise ConfigError(f"{key}={value} is not finite; use {remedy}.")


def within(
    key: str,
    value: float | None,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
) -> None:
    """Refuse a number outside of [least, most]; `above` and `below` exclude the ends.

    None passes: whether a key may be null is said by its type.
    """
    if value is None:
        return
    finite(key, value)
    high_enough = value > least if above else value >= least
    low_enough = value < most if below else value <= most
    if high_enough and low_enough:
        return
    bounds = []
    if least > -math.inf:
        bounds.append(f"{'above' if above else 'at least'} {least:g}")
    if most < math.inf:
        bounds.append(f"{'below' if below else 'at most'} {most:g}")
    raise ConfigError(f"{key}={value}; it must be {' and '.join(bounds)}")


def each_within(
    section: str,
    settings: object,
    names: Iterable[str],
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
) -> None:
    """`within` for several numbers of a section; an empty `section` stands for keys without one."""
    for name in names:
        key = f"{section}.{name}" if section else name
        within(key, getattr(settings, name), least, most, above=above, below=below)


def lowest_highest(
    key: str, pair: Sequence[float], least: float = 0.0, most: float = math.inf
) -> None:
    """Refuse what is not [lowest, highest] with least < lowest <= highest <= most."""
    for number in pair:
        finite(key, number)
    if len(pair) != 2 or not least < pair[0] <= pair[1] <= most:
        bounds = f"above {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise ConfigError(f"{key}={list(pair)}; give [lowest, highest], both {bounds}")


def height_width(key: str, size: Sequence[int], least: int = 1, multiple: int = 1) -> None:
    """Refuse what is not [height, width], both at least `least` and multiples of `multiple`."""
    if len(size) != 2 or any(side < least or side % multiple for side in size):
        kind = f"multiples of {multiple}" if multiple > 1 else f"at least {least}"
        raise ConfigError(f"{key}={list(size)}; give [height, width] in pixels, both {kind}")


def multiple_of(key: str, value: int, divisor_key: str, divisor: int) -> None:
    """Refuse a number that another setting does not divide."""
    within(divisor_key, divisor, 1)
    if value % divisor:
        raise ConfigError(
            f"{key}={value} is not a multiple of {divisor_key}={divisor}; use "
            f"{max(value - value % divisor, divisor)}"
        )


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is none of these."""
    if value not in allowed:
        raise ConfigError(
            f"{key}={value}{nearest(value, allowed)}; use one of {', '.join(allowed)}"
        )
