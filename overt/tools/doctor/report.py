"""What a check found and how to fix it; the checks of all processes put together; the table."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from overt.errors import OvertError

WIDTH = 100


class Level(enum.IntEnum):
    """Severity: fine, worth a look, or training will fail or suffer."""

    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True)
class Check:
    """One line of the report. A remedy is there where the level is not OK."""

    name: str
    level: Level
    finding: str
    remedy: str = ""


def ok(name: str, finding: str) -> Check:
    return Check(name, Level.OK, finding)


def warn(name: str, finding: str, remedy: str) -> Check:
    return Check(name, Level.WARN, finding, remedy)


def fail(name: str, finding: str, remedy: str) -> Check:
    return Check(name, Level.FAIL, finding, remedy)


def attempt(name: str, check: Callable[[], Check], remedy: str) -> Check:
    """The check, or its failure as a finding: one failing check must not end the others."""
    try:
        return check()
    except OvertError as error:  # says by itself what to do
        return fail(name, str(error), remedy)
    except (OSError, RuntimeError, ValueError) as error:
        return fail(name, f"{type(error).__name__}: {error}", remedy)


def merged(by_process: Sequence[Sequence[Check]], labels: Sequence[str]) -> list[Check]:
    """Return one check per name: the worst of all processes, with the processes that have it."""
    names = list(dict.fromkeys(check.name for checks in by_process for check in checks))
    result = []
    for name in names:
        candidates = [
            (check, label)
            for checks, label in zip(by_process, labels, strict=True)
            for check in checks
            if check.name == name
        ]
        worst = max(candidates, key=lambda pair: pair[0].level)[0]
        worst_labels = [label for check, label in candidates if check == worst]
        if len(worst_labels) == len(labels):
            result.append(worst)
        elif worst.level is Level.OK:  # all well, with different numbers: the first speaks
            result.append(candidates[0][0])
        else:
            more = f" and {len(worst_labels) - 3} more" if len(worst_labels) > 3 else ""
            text = f"{worst.finding} ({', '.join(worst_labels[:3])}{more})"
            result.append(Check(name, worst.level, text, worst.remedy))
    return result


def table(checks: Iterable[Check]) -> str:
    """Format for people: a line per check, its remedy below."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        start = f"{check.level.name:<4}  {check.name:<{width}}  "
        lines += _wrapped(check.finding, start)
        if check.remedy:
            lines += _wrapped(f"-> {check.remedy}", " " * len(start))
    return "\n".join(lines)


def _wrapped(text: str, start: str) -> list[str]:
    wrap = textwrap.TextWrapper(WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    wrap.break_long_words = wrap.break_on_hyphens = False
    return wrap.wrap(text) or [start.rstrip()]


def as_json(checks: Iterable[Check]) -> dict[str, Any]:
    """Format for scripts; the keys are an interface, so `finding` is called `found` there."""
    checks = list(checks)
    worst = max((check.level for check in checks), default=Level.OK)
    rows = [
        {
            "name": check.name,
            "level": check.level.name,
            "found": check.finding,
            "remedy": check.remedy,
        }
        for check in checks
    ]
    return {"level": worst.name, "checks": rows}
