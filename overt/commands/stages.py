"""`overt stages FILE`: a chain of trainings, each fed by the best checkpoint of an earlier one.

FILE is YAML. A stage that is done is skipped, one that was interrupted goes on where it stopped.

    output_dir: runs/blade
    stages:
      - name: depth
        recipe: blade_depthnet
        overrides: {training.batch_size: 2}
        nodes: 8
        gpus: 8
      - name: pose
        recipe: blade_posenet
        checkpoints: {model.depthnet_checkpoint: depth}     # its best; `depth latest` its last

Without `gpus` a stage is one process. --dry-run shows what would run.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from overt.config import Config, differences, load
from overt.engine.preemption import StopSignal
from overt.errors import (
    PREEMPTED_EXIT_CODE,
    CheckpointError,
    ConfigError,
    LaunchError,
    OvertError,
    Preempted,
    nearest,
)
from overt.train import run_one

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
        return [*self.overrides, *(word for one in self.packages for word in ("--package", one))]


@dataclass(frozen=True)
class StageCommand:
    """What a launcher has to start: `overt train WORDS` on so many devices, after some others."""

    name: str
    words: list[str]
    nodes: int
    gpus: int | None
    after: list[str] = field(default_factory=list)  # names of stages that must be done


@dataclass(frozen=True)
class Progress:
    """How far a stage is."""

    step: int
    total: int | None  # None: not begun

    @property
    def is_done(self) -> bool:
        return self.total is not None and self.step >= self.total

    def __str__(self) -> str:
        if self.total is None:
            return "not begun"
        return "done" if self.is_done else f"at step {self.step} of {self.total}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt stages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every stage")
    parser.add_argument("--output-dir", type=Path, help="in place of the file's output_dir")
    parser.add_argument("--dry-run", action="store_true", help="show what would run, run nothing")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="run every stage on N processes of this host"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what a launcher would submit, as JSON"
    )
    options = parser.parse_intermixed_args(arguments)
    stages = read_stages(options.file, options.overrides, options.output_dir)
    if options.plan:
        print(json.dumps([asdict(command) for command in plan(stages)], indent=2))
        return 0
    # All are checked before the first one starts.
    configs = [load(stage.overrides, packages=stage.packages) for stage in stages]
    for number, (stage, config) in enumerate(zip(stages, configs, strict=True), start=1):
        progress = progress_of(stage, config)
        print(f"[{number}/{len(stages)}] {stage.name}: {progress}", flush=True)
        if progress.is_done:
            continue
        command = local_command(stage, options.processes)
        print(f"$ {shlex.join(command)}", flush=True)
        if options.dry_run:
            continue
        check_needs(stage, stages)
        run(stage, command)
        if not progress_of(stage, config).is_done:
            raise OvertError(f"stage {stage.name} ended before its last step; see above")
    return 0


# --- the file ------------------------------------------------------------------------------------


def read_stages(
    path: Path, extra: Sequence[str] = (), output_dir: Path | None = None
) -> list[Stage]:
    """The stages of a file in order, each with its whole list of overrides."""
    content = _read(path)
    _known(path, "", content, TOP_KEYS)
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
        stages.append(_stage(path, number, entry, output, [*common, *extra], stages))
    return stages


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file of stages")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:
        raise ConfigError(f"{path} is not readable YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected are the keys {', '.join(TOP_KEYS)}")
    return {str(key): value for key, value in content.items()}


def _stage(
    path: Path,
    number: int,
    entry: Any,
    output: Path,
    common: list[str],
    earlier: list[Stage],
) -> Stage:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}: stage {number} is no mapping of {', '.join(KEYS)}")
    name = str(entry.get("name", ""))
    _known(path, f"stage {name or number}: ", entry, KEYS)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"{path}: stage {number} needs a name of letters, digits, . _ and -")
    if name in [stage.name for stage in earlier]:
        raise ConfigError(f"{path}: two stages are called {name}; a name is a run's folder")
    if not entry.get("recipe"):
        raise ConfigError(f"{path}: stage {name} needs `recipe: NAME`")
    needs, taken = _checkpoints(path, name, entry.get("checkpoints") or {}, earlier)
    overrides = [
        f"recipe={entry['recipe']}",
        f"exp_name={name}",
        f"output_dir={_quoted(str(output))}",
        *_overrides(path, f"stage {name}: ", entry.get("overrides")),
        *common,
        *taken,
    ]
    nodes, gpus = entry.get("nodes", 1), entry.get("gpus")
    for key, value in (("nodes", nodes), ("gpus", gpus)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{path}: stage {name}: {key}={value}; allowed is 1 or more")
    packages = tuple(str(one) for one in entry.get("packages") or ())
    return Stage(name, output / name, tuple(overrides), tuple(needs), nodes, gpus, packages)


def _checkpoints(
    path: Path, name: str, entries: Any, earlier: list[Stage]
) -> tuple[list[tuple[str, str]], list[str]]:
    """What a stage takes from earlier ones: their names, and the overrides that say where."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{path}: stage {name}: `checkpoints` maps keys to names of stages")
    known = {stage.name: stage for stage in earlier}
    needs, overrides = [], []
    for key, value in entries.items():
        source, _, which = str(value).partition(" ")
        which = which.strip() or "best"
        if source not in known:
            raise ConfigError(
                f"{path}: stage {name} takes {key} from {source}, which is no earlier stage"
                f"{nearest(source, list(known))}; there are {', '.join(known) or 'none'}"
            )
        if which not in WHICH:
            raise ConfigError(f"{path}: stage {name}: {value}; write STAGE, or STAGE latest")
        needs.append((source, which))
        link = known[source].run_dir / "checkpoints" / which
        overrides.append(f"{key}={_quoted(str(link))}")
    return needs, overrides


def _overrides(path: Path, where: str, value: Any) -> list[str]:
    """KEY=VALUE words from a list of them or from a mapping."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [f"{key}={_word(one)}" for key, one in value.items()]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return list(value)
    raise ConfigError(f"{path}: {where}`overrides` is a mapping, or a list of KEY=VALUE")


def _word(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    """A value as Hydra's command line takes it."""
    if re.fullmatch(r"[\w./:-]+", text):
        return text
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


def _known(path: Path, where: str, entry: Mapping[Any, Any], keys: Sequence[str]) -> None:
    for key in entry:
        if key not in keys:
            raise ConfigError(
                f"{path}: {where}there is no key {key}{nearest(str(key), list(keys))}; allowed are "
                f"{', '.join(keys)}"
            )


# --- running -------------------------------------------------------------------------------------


def plan(stages: Sequence[Stage]) -> list[StageCommand]:
    """The stages as commands with dependencies: what a launcher of jobs submits, in order.

    A command names the checkpoints of earlier stages by links that these stages make, so that all
    can be submitted at once. A command of a stage that is done, or was interrupted, goes on.
    """
    return [
        StageCommand(
            stage.name, stage.words, stage.nodes, stage.gpus, [name for name, _ in stage.needs]
        )
        for stage in stages
    ]


def local_command(stage: Stage, processes: int | None = None) -> list[str]:
    """The command that trains a stage on this host."""
    count = stage.gpus if processes is None else processes
    if processes is None and stage.nodes > 1:
        raise LaunchError(
            f"stage {stage.name} wants {stage.nodes} nodes; submit the chain to Slurm, or run it "
            "on this host alone with --processes N"
        )
    if count is None or count == 1:
        return [sys.executable, "-m", "overt.train", *stage.words]
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return [sys.executable, *start, "-m", "overt.train", *stage.words]


def run(stage: Stage, command: list[str]) -> None:
    """Train a stage in processes of its own; what it says is shown as it comes."""
    try:
        with StopSignal() as stop:
            code = run_one(command, stop)
    except KeyboardInterrupt:  # the training has been told too, and has saved what it saves
        raise OvertError(
            f"interrupted in stage {stage.name}; the same command goes on there"
        ) from None
    if code == PREEMPTED_EXIT_CODE or stop.name is not None:
        raise Preempted(f"asked to stop in stage {stage.name}; the same command goes on there")
    if code:
        raise OvertError(
            f"stage {stage.name} ended with exit code {code}; see above. The same command goes on "
            "from its last checkpoint"
        )


def check_needs(stage: Stage, stages: Sequence[Stage]) -> None:
    """Refuse to start a stage whose checkpoints do not exist."""
    folders = {one.name: one.run_dir / "checkpoints" for one in stages}
    for name, which in stage.needs:
        link = folders[name] / which
        if not link.exists():
            hint = ""
            if which == "best":
                hint = (
                    ": no checkpoint of it was measured. Set checkpoint.metric_name to one of its "
                    f"scores, and checkpoint.every_steps to a step that is evaluated; or write "
                    f"`{name} latest`"
                )
            raise CheckpointError(f"stage {stage.name} needs {link}, which is not there{hint}")


def progress_of(stage: Stage, config: Config) -> Progress:
    """How far a stage is, from its run folder alone; refused where that is of another run."""
    from overt.engine import plain, storage
    from overt.engine.run_folder import FREE_TO_CHANGE

    stored, _ = storage.scan(stage.run_dir / "checkpoints")
    if not stored:
        return Progress(0, None)
    newest = stored[-1].path
    state: dict[str, Any] = plain.decode((newest / "state.json").read_bytes())["state"]
    training = config.training
    total = training.num_steps
    if total is None:
        batch, samples = int(state["global_batch_size"]), int(state["samples"])
        epoch = samples // batch if training.drop_last else -(-samples // batch)
        total = (training.num_epochs or 0) * max(epoch, 1)
    changes = differences((newest / "config.yaml").read_text(), config.text, FREE_TO_CHANGE)
    if changes and int(state["step"]) >= total:
        lines = "\n  ".join(f"{key}: {before} -> {after}" for key, before, after in changes)
        raise ConfigError(
            f"stage {stage.name} is done in {stage.run_dir}, but with other settings:\n  {lines}\n"
            "Choose another output_dir, or remove that folder"
        )
    return Progress(int(state["step"]), total)
