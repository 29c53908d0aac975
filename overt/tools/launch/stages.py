"""Chains of trainings from a YAML file: what each stage is given, and which it comes after.

The format is that of `overt stages`, which runs a chain, and `overt launch slurm --stages`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from overt.config.overrides import quoted
from overt.errors import ConfigError, nearest
from overt.files.yaml_text import read_yaml

KEYS = ("name", "recipe", "overrides", "checkpoints", "nodes", "gpus", "packages")
TOP_KEYS = ("output_dir", "overrides", "stages")
WHICH = ("best", "latest")
OWN_KEYS = ("recipe", "exp_name", "output_dir")


@dataclass(frozen=True)
class Stage:
    """One training of a chain, and what it takes from earlier ones."""

    name: str
    run_dir: Path
    overrides: tuple[str, ...]  # everything that `overt train` is given
    needs: tuple[tuple[str, str], ...] = ()  # (stage, best or latest)
    nodes: int = 1
    gpus: int | None = None  # per node; None: one process on any device
    packages: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The arguments of `overt train`."""
        packages = (word for package in self.packages for word in ("--package", package))
        return [*self.overrides, *packages]

    @property
    def after(self) -> list[str]:
        """Names of the stages that must be done before."""
        return [name for name, _ in self.needs]


@dataclass(frozen=True)
class StageCommand:
    """What a launcher has to start: `overt train WORDS` on some devices, after some others."""

    name: str
    words: list[str]
    nodes: int
    gpus: int | None
    after: list[str] = field(default_factory=list)  # names of stages that must be done


def read_stages(
    path: Path, extra: Sequence[str] = (), output_dir: Path | None = None
) -> list[Stage]:
    """Return the stages of a file in order, each with its whole list of overrides."""
    content = _read(path)
    _refuse_unknown(path, "", content, TOP_KEYS)
    entries = content.get("stages")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: `stages` must list at least one stage")
    output = output_dir or Path(str(content.get("output_dir", "runs")))
    common = _overrides(path, "", content.get("overrides"))
    for word in (*common, *extra):
        if word.partition("=")[0] in OWN_KEYS:
            raise ConfigError(
                f"{word}: {', '.join(OWN_KEYS)} follow from the stages' names and recipes and from "
                "output_dir of the file (or --output-dir)"
            )
    stages: list[Stage] = []
    for number, entry in enumerate(entries, start=1):
        stages.append(_stage(path, number, entry, output, common, list(extra), stages))
    return stages


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of stages")
    try:
        content = OmegaConf.to_container(read_yaml(path), resolve=True)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} is not readable YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected the keys {', '.join(TOP_KEYS)}")
    return {str(key): value for key, value in content.items()}


def _stage(
    path: Path,
    number: int,
    entry: Any,
    output: Path,
    common: list[str],
    extra: list[str],
    earlier: list[Stage],
) -> Stage:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}: stage {number} is not a mapping of {', '.join(KEYS)}")
    name = str(entry.get("name", ""))
    _refuse_unknown(path, f"stage {name or number}: ", entry, KEYS)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"{path}: stage {number} needs a name of letters, digits, . _ and -")
    if name in [stage.name for stage in earlier]:
        raise ConfigError(f"{path}: two stages are called {name}; a name is a run's folder")
    if not entry.get("recipe"):
        raise ConfigError(f"{path}: stage {name} needs `recipe: NAME`")
    needs, checkpoint_overrides = _checkpoints(path, name, entry.get("checkpoints") or {}, earlier)
    overrides = [
        f"recipe={entry['recipe']}",
        f"exp_name={quoted(name)}",
        f"output_dir={quoted(str(output))}",
        *common,
        *_overrides(path, f"stage {name}: ", entry.get("overrides")),
        *extra,  # of the command line: over both
        *checkpoint_overrides,
    ]
    nodes, gpus = entry.get("nodes", 1), entry.get("gpus")
    for key, value in (("nodes", nodes), ("gpus", gpus)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{path}: stage {name}: {key}={value}; use 1 or more")
    packages = tuple(map(str, entry.get("packages") or ()))
    return Stage(name, output / name, tuple(overrides), tuple(needs), nodes, gpus, packages)


def _checkpoints(
    path: Path, name: str, entries: Any, earlier: list[Stage]
) -> tuple[list[tuple[str, str]], list[str]]:
    """What a stage takes from earlier ones: their names, and the overrides that say where."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{path}: stage {name}: `checkpoints` maps keys to names of stages")
    stages_by_name = {stage.name: stage for stage in earlier}
    needs, overrides = [], []
    for key, value in entries.items():
        source, _, checkpoint_name = str(value).partition(" ")
        checkpoint_name = checkpoint_name.strip() or "best"
        if source not in stages_by_name:
            raise ConfigError(
                f"{path}: stage {name} takes {key} from {source}, which is not an earlier stage"
                f"{nearest(source, list(stages_by_name))}; there are "
                f"{', '.join(stages_by_name) or 'none'}"
            )
        if checkpoint_name not in WHICH:
            raise ConfigError(f"{path}: stage {name}: {value}; write STAGE, or STAGE latest")
        needs.append((source, checkpoint_name))
        link = stages_by_name[source].run_dir / "checkpoints" / checkpoint_name
        overrides.append(f"{key}={quoted(str(link))}")
    return needs, overrides


def _overrides(path: Path, where: str, value: Any) -> list[str]:
    """KEY=VALUE words from a list of them or from a mapping."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [f"{key}={_word(item)}" for key, item in value.items()]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return list(value)
    raise ConfigError(f"{path}: {where}`overrides` is a mapping, or a list of KEY=VALUE")


def _word(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    return json.dumps(value)


def _refuse_unknown(path: Path, where: str, entry: Mapping[Any, Any], keys: Sequence[str]) -> None:
    for key in entry:
        if key not in keys:
            raise ConfigError(
                f"{path}: {where}unknown key {key}{nearest(str(key), list(keys))}; use one of "
                f"{', '.join(keys)}"
            )


def plan(stages: Sequence[Stage]) -> list[StageCommand]:
    """Return the stages as commands with dependencies: what a launcher of jobs submits, in order.

    A command names the checkpoints of earlier stages by links that these stages make, so that all
    can be submitted at once. A command of a stage that is done, or was interrupted, resumes.
    """
    return [
        StageCommand(stage.name, stage.words, stage.nodes, stage.gpus, stage.after)
        for stage in stages
    ]
