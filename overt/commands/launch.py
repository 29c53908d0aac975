"""`overt launch WHERE ... KEY=VALUE...`: start training that restarts and resumes by itself.

    overt launch slurm --nodes 8 --gpus 8 recipe=NAME ...      write a batch script and submit it
    overt launch slurm --gpus 8 --stages FILE                  a chain of stages as dependent jobs
    overt launch slurm --gpus 1 -m recipe=NAME optimizer.lr=1e-4,5e-4       a sweep as a job array
    overt launch local --gpus 2 recipe=NAME ...                in the background
    overt launch local status|stop RUN                         of a run folder
    overt launch systemd --gpus 2 recipe=NAME ...              a service that resumes after a reboot

Everything is checked before anything starts. --print shows what would be written.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overt.commands.arguments import config_options, finite_number, whole_number
from overt.config import Config, expand_sweep, load, sweep_names
from overt.config.overrides import quoted
from overt.errors import ConfigError, LaunchError
from overt.tools.launch import local, slurm, systemd
from overt.tools.launch.settings import SlurmSettings, read_settings
from overt.tools.launch.size import Size, check_size, make_size
from overt.tools.launch.stages import read_stages


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in BACKENDS:
        return BACKENDS[arguments[0]](arguments[1:])
    parser = argparse.ArgumentParser(
        prog="overt launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "where", choices=tuple(BACKENDS), help="`overt launch WHERE --help` explains each"
    )
    parser.parse_args(arguments)
    return 0


def _parser(backend: str, description: str) -> argparse.ArgumentParser:
    """The options that every place shares: those of `overt train`, and the number of devices."""
    parser = argparse.ArgumentParser(
        prog=f"overt launch {backend}", description=description, parents=[config_options()]
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="recipe=NAME, ..."
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs per node, one process on each")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="processes per node, on the CPU (--gpus 0)"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable; repeatable"
    )
    return parser


def _words(overrides: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Return the words of `overt train`."""
    packages = (word for package in options.package for word in ("--package", package))
    words = [*overrides, *packages]
    return [*words, "--config", options.config] if options.config else words


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if not re.match(r"[A-Za-z_]\w*=", pair):
            raise ConfigError(f"--env {pair}: write NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


# --- Slurm ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A job to submit, once those it needs have their numbers."""

    job: slurm.Job
    after: Sequence[str] = ()  # names of jobs


def launch_slurm(arguments: Sequence[str]) -> int:
    parser = _parser(
        "slurm", "Write a batch script and submit it. Defaults: conf/launch/slurm.yaml"
    )
    parser.add_argument("--nodes", type=int, default=1, metavar="N")
    parser.add_argument(
        "--tasks-per", choices=("node", "gpu"), help="one task per node with torchrun, or per GPU"
    )
    parser.add_argument("--site", type=Path, metavar="FILE", help="YAML of your cluster's settings")
    parser.add_argument("--time", help="wall-clock limit, as sbatch takes it")
    for name in ("partition", "account", "qos"):
        parser.add_argument(f"--{name}", metavar="NAME")
    parser.add_argument("--cpus-per-process", type=int, metavar="N", help="CPU cores of each")
    parser.add_argument(
        "--signal-seconds", type=int, metavar="N", help="time to save before the limit"
    )
    parser.add_argument(
        "--module", action="append", metavar="NAME", help="module to load; repeatable"
    )
    parser.add_argument("--container", metavar="IMAGE", help="for apptainer or pyxis")
    parser.add_argument("--stages", type=Path, metavar="FILE", help="as `overt stages` takes it")
    parser.add_argument("-m", "--multirun", action="store_true", help="a=1,2 as a job array")
    parser.add_argument("--print", action="store_true", help="show the scripts, submit nothing")
    options = parser.parse_intermixed_args(arguments)
    settings = read_settings(options.site, _settings_from(options))
    planned = _plan_stages(options, settings) if options.stages else [_plan(options, settings)]
    if options.print:
        print("\n".join(slurm.render(entry.job) for entry in planned), end="")
        return 0
    numbers: dict[str, str] = {}
    for entry in planned:
        numbers[entry.job.name] = slurm.submit(entry.job, [numbers[name] for name in entry.after])
        print(
            f"job {numbers[entry.job.name]}: {entry.job.name} on {entry.job.size}"
            + (f", after {', '.join(entry.after)}" if entry.after else "")
            + f"\n  script {entry.job.script}\n  log    {_log(entry.job, numbers[entry.job.name])}"
        )
    return 0


def _settings_from(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the command line names."""
    names = (
        "tasks_per", "time", "partition", "account", "qos", "cpus_per_process", "signal_seconds",
        "container",
    )  # fmt: skip
    values = {name: getattr(options, name) for name in names}
    values |= {"modules": options.module, "env": _variables(options.env) or None}
    return {name: value for name, value in values.items() if value is not None}


def _log(job: slurm.Job, number: str) -> str:
    return str(job.log).replace("%j", number).replace("%A", number).replace("%a", "*")


def _need_gpus(gpus: int | None) -> int:
    if gpus is None:
        raise ConfigError("give the number of GPUs per node: --gpus N (0: train on the CPU)")
    return gpus


def _plan(options: argparse.Namespace, settings: SlurmSettings) -> Planned:
    """Return the job of one run, or the job array of a sweep."""
    size = make_size(options.nodes, _need_gpus(options.gpus), options.processes)
    if not options.multirun:
        config = load(options.overrides, options.config, options.package)
        return Planned(_job(config, _words(options.overrides, options), size, settings))
    choices = expand_sweep(options.overrides)
    # All are checked before the first one is submitted.
    configs = [load(overrides, options.config, options.package) for overrides in choices]
    names = sweep_names(choices, options.overrides, [config.exp_name for config in configs])
    runs = []
    for overrides, config, name in zip(choices, configs, names, strict=True):
        check_size(config, size)
        words = _words([*overrides, f"exp_name={quoted(name)}"], options)
        runs.append(slurm.Run(Path.cwd() / config.output_dir / name, words))
    base = configs[0]
    folder = _absolute(base) / slurm.FOLDER
    return Planned(slurm.Job(base.exp_name, runs, size, settings, folder, Path.cwd()))


def _job(config: Config, words: list[str], size: Size, settings: SlurmSettings) -> slurm.Job:
    check_size(config, size)
    run = slurm.Run(_absolute(config), words)
    return slurm.Job(config.exp_name, [run], size, settings, run.run_dir / slurm.FOLDER, Path.cwd())


def _absolute(config: Config) -> Path:
    return Path.cwd() / config.run_dir


def _plan_stages(options: argparse.Namespace, settings: SlurmSettings) -> list[Planned]:
    """Return the stages of a file, each after those whose checkpoints it takes."""
    if options.multirun or options.config or options.package:
        raise ConfigError(
            "--stages takes KEY=VALUE for all stages, but not -m, --config, --package"
        )
    planned = []
    for stage in read_stages(options.stages, options.overrides):
        has_own_size = stage.gpus is not None or stage.nodes != 1  # else the command line says it
        size = make_size(
            stage.nodes if has_own_size else options.nodes,
            _need_gpus(options.gpus if stage.gpus is None else stage.gpus),
            options.processes,
        )
        config = load(stage.overrides, packages=stage.packages)
        planned.append(Planned(_job(config, stage.words, size, settings), stage.after))
    return planned


# --- this machine --------------------------------------------------------------------------------


def launch_local(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("status", "stop"):
        return _manage(arguments[0], arguments[1:])
    parser = _parser("local", "Train in the background; `status RUN`, `stop RUN`.")
    parser.add_argument(
        "--max-restarts", type=whole_number(0), default=3, help="restarts after a lost process"
    )
    parser.add_argument("--print", action="store_true", help="show the command, start nothing")
    options = parser.parse_intermixed_args(arguments)
    config, command = _local_command(options, "local", options.max_restarts, stop_seconds=120)
    if options.print:
        print(shlex.join(command))
        return 0
    if options.env:
        command = ["env", *options.env, *command]
    started = local.start(_absolute(config), command)
    run_dir, run_word = config.run_dir, shlex.quote(str(config.run_dir))
    print(
        f"process {started.pid} trains {run_dir}\n  log     {run_dir / local.LOG}\n"
        f"  status  overt launch local status {run_word}\n"
        f"  stop    overt launch local stop {run_word}"
    )
    return 0


def _local_command(
    options: argparse.Namespace, backend: str, max_restarts: int, stop_seconds: int
) -> tuple[Config, list[str]]:
    size = make_size(1, _need_gpus(options.gpus), options.processes)
    config = load(options.overrides, options.config, options.package)
    check_size(config, size)
    _variables(options.env)
    words = _words(options.overrides, options)
    notes = _absolute(config) / f"{backend}.stopped"
    command = local.training_command(words, size.processes, notes, max_restarts, stop_seconds)
    return config, command


def _manage(action: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"overt launch local {action}")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    if action == "stop":
        parser.add_argument(
            "--seconds",
            type=finite_number(0),
            default=120.0,
            help="how long to wait for the save",
        )
    options = parser.parse_args(arguments)
    started = local.read(options.run)
    if started is None:
        raise LaunchError(f"nothing was started in {options.run} by `overt launch local`")
    if not local.is_running(started):
        print(f"process {started.pid} has ended; {_progress(options.run)}")
        return 0 if action == "stop" else 3  # as service managers answer
    if action == "status":
        print(f"process {started.pid} is training; {_progress(options.run)}")
        return 0
    if not local.stop(started, options.seconds):
        raise LaunchError(
            f"process {started.pid} has not ended within {options.seconds:g} s. It may still be "
            f"saving: see {options.run / local.LOG}, or ask again with more --seconds"
        )
    print(f"process {started.pid} has ended; {_progress(options.run)}")
    return 0


def _progress(run: Path) -> str:
    names = sorted(path.name for path in (run / "checkpoints").glob("step_*[0-9]"))
    saved = f"last checkpoint {names[-1]}" if names else "no checkpoint yet"
    log = run / local.LOG
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{saved}; log {log}" + (f"\n  {lines[-1]}" if lines else "")


# --- systemd -------------------------------------------------------------------------------------


def launch_systemd(arguments: Sequence[str]) -> int:
    parser = _parser("systemd", "Write a service that trains, saves when stopped, and resumes.")
    parser.add_argument(
        "--system", action="store_true", help="a system unit instead of a user unit"
    )
    parser.add_argument(
        "--max-restarts", type=whole_number(0), default=3, help="restarts after a lost process"
    )
    parser.add_argument(
        "--stop-seconds",
        type=whole_number(1),
        default=120,
        metavar="N",
        help="time allowed for the save",
    )
    parser.add_argument("--print", action="store_true", help="show the unit, write nothing")
    options = parser.parse_intermixed_args(arguments)
    config, command = _local_command(options, "systemd", options.max_restarts, options.stop_seconds)
    unit = systemd.Unit(
        name=config.exp_name,
        run_dir=_absolute(config),
        work_dir=Path.cwd(),
        command=command,
        environment=_variables(options.env),
        stop_seconds=options.stop_seconds + 10,  # torchrun's own time limit comes first
        is_system=options.system,
    )
    if options.print:
        print(systemd.render(unit), end="")
        return 0
    systemd.write(unit)
    print(f"{unit.path} is written; start it with\n  " + "\n  ".join(systemd.next_commands(unit)))
    return 0


BACKENDS = {"slurm": launch_slurm, "local": launch_local, "systemd": launch_systemd}
