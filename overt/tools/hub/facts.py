"""What a run tells about its checkpoint: settings, scores, command, versions. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import overt
from overt.checkpoint import plain_values
from overt.checkpoint.manifest import MANIFEST, read_manifest
from overt.config import CONF
from overt.errors import CheckpointError
from overt.files.yaml_text import read_yaml
from overt.run.folder import RunPaths
from overt.run.reader import read_rows

ABSOLUTE = re.compile(r"(?<![\w.:/])(?:~|/[\w.@+-]+)(?:/[\w.@+-]+)+/?")


@dataclass(frozen=True)
class Facts:
    """A checkpoint, as its run describes it."""

    recipe: str
    summary: str  # what the recipe trains, in one sentence
    settings: dict[str, Any]  # the configuration, without paths of this machine
    step: int
    scores: dict[str, float]
    scored_on: str  # what the scores were measured on
    initial_scores: dict[str, float]  # before the first step
    command: str | None
    versions: dict[str, str]
    bases: list[str] = field(default_factory=list)  # frozen weights that are not in the file

    def baselines(self, score: str) -> dict[str, float]:
        """Return the scores named NAME_SCORE, as `static_average_jaccard`, by NAME."""
        suffix = f"_{score}"
        return {
            name.removesuffix(suffix): value
            for name, value in self.scores.items()
            if name.endswith(suffix)
        }

    def own_scores(self) -> dict[str, float]:
        """Return the scores of the model itself."""
        baseline_names = {
            f"{name}_{score}" for score in self.scores for name in self.baselines(score)
        }
        return {name: value for name, value in self.scores.items() if name not in baseline_names}


def read_facts(checkpoint: Path) -> Facts:
    """Read a checkpoint folder of overt and, where it lies in a run folder, the run."""
    stored = checkpoint / "config.yaml"
    if not (checkpoint / MANIFEST).is_file() or not stored.is_file():
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint folder of overt with a config.yaml, which the model "
            "card is filled from; name one, such as runs/NAME/checkpoints/best"
        )
    from omegaconf import OmegaConf

    manifest = read_manifest(checkpoint)
    settings = without_paths(OmegaConf.to_container(read_yaml(stored)))
    settings["output_dir"] = "runs"
    recipe = str(settings["recipe"]["name"])
    resolved = checkpoint.resolve()
    run = resolved.parent.parent if resolved.parent.name == "checkpoints" else None
    scores, scored_on = _scores(resolved, run)
    return Facts(
        recipe=recipe,
        summary=_summary(recipe),
        settings=settings,
        step=int(manifest["step"]),
        scores=scores,
        scored_on=scored_on,
        initial_scores=_initial_scores(run),
        command=_command(run),
        versions={"overt": overt.__version__, **manifest["versions"]},
        bases=[without_paths(str(base["path"])) for base in manifest.get("stands_on", [])],
    )


def without_paths(value: Any) -> Any:
    """Return the value with absolute paths reduced to their names: the rest is private."""
    if isinstance(value, Mapping):
        return {key: without_paths(child) for key, child in value.items()}
    if isinstance(value, list):
        return [without_paths(child) for child in value]
    if isinstance(value, str):
        return ABSOLUTE.sub(lambda path: Path(path[0]).name, value)
    return value


def _scores(checkpoint: Path, run: Path | None) -> tuple[dict[str, float], str]:
    """Return the newest `overt evaluate` of this checkpoint, or the scores it was saved with."""
    files = sorted(run.glob("evaluation*/scores.json"), key=_modified) if run else []
    for file in reversed(files):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if Path(content["checkpoint"]) != checkpoint:
                continue
            dataset = (content.get("evaluation") or {}).get("dataset")
            return _numbers(content["scores"]), f"`overt evaluate`{f', {dataset}' * bool(dataset)}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not a file of `overt evaluate`
    saved = plain_values.decode((checkpoint / "state.json").read_bytes())["metrics"]
    return _numbers(saved or {}), "the evaluation during training"


def _modified(file: Path) -> float:
    return file.stat().st_mtime


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    kinds = int | float
    return {str(name): float(value) for name, value in values.items() if isinstance(value, kinds)}


def _initial_scores(run: Path | None) -> dict[str, float]:
    """Return the scores before the first step, where the run has them."""
    metrics = RunPaths(run).metrics if run else None
    if metrics is None or not metrics.is_file():
        return {}
    for row in read_rows(metrics):
        if row.get("step") != 0:
            break
        named = {name.removeprefix("evaluation/"): value for name, value in row.items()
                 if name.startswith("evaluation/")}  # fmt: skip
        if named:
            return _numbers(named)
    return {}


def _command(run: Path | None) -> str | None:
    """Return the first command that worked on the run."""
    file = RunPaths(run).command if run else None
    if file is None or not file.is_file():
        return None
    first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    words = re.sub(r"^\S+ \S+  ", "", first)  # without the time
    words = re.sub(r"^\S*/overt/__main__\.py |^\S*bin/overt ", "overt ", words)
    words = re.sub(r"^\S*/overt/train\.py ", "overt train ", words)
    command: str = without_paths(words)
    return command or None


def _summary(recipe: str) -> str:
    """Return the first sentence of the recipe's YAML file, where overt has one."""
    file = CONF / "recipe" / f"{recipe}.yaml"
    if not file.is_file():
        return ""
    lines = file.read_text(encoding="utf-8").splitlines()
    comments = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            comments.append(line.lstrip("# ").strip())
    return " ".join(comments).partition(". ")[0].rstrip(".")
