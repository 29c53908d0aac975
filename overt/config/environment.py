"""Environment variables in configurations: `${oc.env:NAME}` reads those that are allowed, only.

A file from someone else must not read secrets into the stored configuration, or send them to a
tracker that it names itself. Allowed: OVERT_* and what the user writes on the command line or
in Python. Never imports torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

PREFIX = "OVERT_"
USED = re.compile(r"\boc\.env\s*:\s*['\"]?([A-Za-z_][A-Za-z0-9_]*)")

_allowed: set[str] = set()


def allow_in(value: Any) -> None:
    """Allow the variables that a user's own words or values name."""
    if isinstance(value, str):
        _allowed.update(USED.findall(value))
    elif isinstance(value, Mapping):
        for item in value.values():
            allow_in(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            allow_in(item)


def read(name: str, default: Any = "???") -> Any:
    """Return a variable that may be read; the resolver behind `${oc.env:NAME,DEFAULT}`."""
    if not isinstance(name, str):
        raise ValueError(f"oc.env takes the name of an environment variable, got {name!r}")
    if not name.startswith(PREFIX) and name not in _allowed:
        raise PermissionError(
            f"${{oc.env:{name}}} is not allowed: a configuration may read {PREFIX}* only. If you "
            f"want it, write ${{oc.env:{name}}} on the command line"
        )
    value = os.environ.get(name)
    if value is not None:
        return value
    if default == "???":
        raise KeyError(f"environment variable {name} is not set")
    return default if default is None else str(default)


def install() -> None:
    """Replace OmegaConf's own resolver by `read`."""
    OmegaConf.register_new_resolver("oc.env", read, replace=True)


install()
