"""What a job asks Slurm for: defaults of overt, the site's file, the command line, checked.

The values live in conf/launch/slurm.yaml, each with its explanation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from overt.checks import each_within, one_of
from overt.config import CONF
from overt.errors import ConfigError, nearest
from overt.files.yaml_text import read_words

DEFAULTS = CONF / "launch" / "slurm.yaml"
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<fields>\d+(?::\d+){0,2})")


@dataclass
class SlurmSettings:
    time: str = MISSING
    partition: str | None = MISSING
    account: str | None = MISSING
    qos: str | None = MISSING
    sbatch: list[str] = MISSING
    tasks_per: str = MISSING
    cpus_per_process: int | None = MISSING
    signal_seconds: int = MISSING
    max_restarts: int = MISSING
    max_requeues: int = MISSING
    max_fruitless: int = MISSING
    rendezvous_seconds: int = MISSING
    modules: list[str] = MISSING
    env: dict[str, str] = MISSING
    setup: list[str] = MISSING
    python: str | None = MISSING
    container: str | None = MISSING
    container_runtime: str = MISSING
    mounts: list[str] = MISSING

    def __post_init__(self) -> None:
        one_of("tasks_per", self.tasks_per, ("node", "gpu"))
        one_of("container_runtime", self.container_runtime, ("apptainer", "pyxis"))
        each_within("", self, ("signal_seconds", "rendezvous_seconds", "cpus_per_process"), 1)
        each_within("", self, ("max_restarts", "max_requeues", "max_fruitless"), 0)
        for key in ("partition", "account", "qos"):
            value = getattr(self, key)
            # A line break would end the line of #SBATCH, and the shell would run the rest.
            if value is not None and (not value.strip() or "\n" in value):
                raise ConfigError(f"{key}={value!r}; give one name, or names with commas")
        for name in self.env:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ConfigError(f"env: {name!r} is not the name of a variable; write NAME=VALUE")
        for option in self.sbatch:
            if not re.fullmatch(r"--?[a-zA-Z].*", option):
                raise ConfigError(f"sbatch: {option!r} is not an option; write it as --mem=0")
        if self.signal_seconds >= seconds(self.time):
            raise ConfigError(
                f"signal_seconds={self.signal_seconds} is not below the time limit {self.time}: "
                "the run would be signaled as soon as it starts; ask for more time (--time), or "
                "give the save less (--signal-seconds)"
            )


def seconds(time: str) -> int:
    """Return a time limit as sbatch reads it: 90 (minutes), 1:30:00, 2-12, 2-12:30:00."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise ConfigError(f"time={time!r}; write minutes, HH:MM:SS or DAYS-HH:MM:SS")
    fields = [int(field) for field in match["fields"].split(":")]
    units = [3600, 60, 1]
    if match["days"] is None:  # 90 is minutes, 90:30 minutes and seconds
        units = [[60], [60, 1], units][len(fields) - 1]
    days = int(match["days"] or 0)
    return days * 86400 + sum(u * field for u, field in zip(units, fields, strict=False))


def read_settings(site: Path | None, options: Mapping[str, Any]) -> SlurmSettings:
    """Return the defaults, with the site's file and then the options laid over them."""
    values = OmegaConf.merge(OmegaConf.structured(SlurmSettings), OmegaConf.load(DEFAULTS))
    layers: list[tuple[str, Any]] = [("the command line", dict(options))]
    if site is not None:
        layers.insert(0, (str(site), _read(site)))
    for source, layer in layers:
        try:
            values = OmegaConf.merge(values, _literal(layer))
        except ConfigKeyError as error:
            key, allowed = str(error.full_key), list(SlurmSettings.__dataclass_fields__)
            raise ConfigError(
                f"{source}: unknown key {key}{nearest(key, allowed)}; use one of "
                f"{', '.join(allowed)}"
            ) from error
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{source}: {error.full_key}: {reason}") from error
    return cast(SlurmSettings, OmegaConf.to_object(values))


def _read(site: Path) -> Any:
    if not site.is_file():
        raise ConfigError(f"--site {site}: no such file")
    values = read_words(site)
    if not isinstance(values, dict | None):
        raise ConfigError(f"--site {site} is not a mapping of keys to values")
    return values or {}


def _literal(value: Any) -> Any:
    """Return values in which `${HOME}` is text for the shell, not a reference of OmegaConf."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    return value
