"""Train a run: `overt train recipe=NAME ...`, or `torchrun --nproc_per_node=8 -m overt.train ...`.

The configuration is checked before torch is imported. The same command resumes an interrupted run.
From Python: `overt.train(config)`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from overt.config import build_recipe, expand_sweep, load, sweep_names
from overt.config.overrides import quoted
from overt.config.show import add_hydra_options, show, with_default_values
from overt.errors import (
    INTERRUPTED_EXIT_CODE,
    PREEMPTED_EXIT_CODE,
    SHOW_TRACEBACK,
    STOPPED_EXIT_CODES,
    ConfigError,
    OvertError,
    Preempted,
    StoppedAtStart,
    exit_code_of,
    file_problem,
)
from overt.health.leaving import leave
from overt.health.phases import Phases, process_start
from overt.health.preemption import StopSignal
from overt.progress import shown
from overt.terminal import paint, tell


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="recipe=NAME, ..."
    )
    parser.add_argument("--config", help="start from a resolved config.yaml instead of composing")
    parser.add_argument(
        "--package", action="append", default=[], help="folder of your own recipe; repeatable"
    )
    parser.add_argument(
        "-m",
        "--multirun",
        action="store_true",
        help="a sweep: a=1,2 runs one training for each value",
    )
    add_hydra_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        words = with_default_values(sys.argv[1:] if arguments is None else arguments)
        options = make_parser().parse_intermixed_args(words)
        if options.cfg or options.info:
            if options.multirun:
                raise ConfigError("--cfg and --info show one run; omit -m and choose one value")
            show(options)
            return 0
        return run(options)
    except StoppedAtStart as asked:
        tell(str(asked))
        return exit_code_of(asked)
    except OvertError as error:
        tell(f"{paint(type(error).__name__, 'red', sys.stderr)}: {error}")
        return exit_code_of(error)
    except KeyboardInterrupt as stopped:
        tell(
            "\ninterrupted; the same command resumes from the last checkpoint; "
            "without one, it starts over"
        )
        return exit_code_of(stopped)


def run(arguments: argparse.Namespace) -> int:
    with StopSignal() as stop:  # from here on signals are kept for the training loop
        return sweep(arguments, stop) if arguments.multirun else train(arguments, stop)


def train(arguments: argparse.Namespace, stop: StopSignal) -> int:
    phases = Phases(process_start())
    stop.limit_start()
    with explained_files():
        config = load(arguments.overrides, arguments.config, arguments.package)

    from overt.distributed import explained_loss, init_distributed, shutdown
    from overt.engine.trainer import Trainer
    from overt.health.heartbeat import keep_flight_records
    from overt.run.session import explained, locked

    phases.end("imports")
    with explained(config.run_dir):
        keep_flight_records(config.run_dir / "hang")
    world = init_distributed(config.training.device, config.training.timeout_minutes)
    phases.end("group")
    code = 0
    with explained_loss(world, stop.asked_at_start), locked(config.run_dir) as lock:
        # Data may have to be made first.
        with shown() if world.is_main else nullcontext(), explained_files():
            trainer = Trainer(config, build_recipe(config), world, stop, phases, lock=lock)
        try:
            # A launcher of several repeats the signal, and would stop them before they have saved.
            with stop.interrupts() if world.world_size == 1 else nullcontext():
                trainer.train()
        except StoppedAtStart:  # the other ranks may still wait in the process group
            raise
        except Preempted as asked:
            code = exit_code_of(asked)
            if world.is_main:
                tell(str(asked))
            stop.stay()
        del trainer  # before the process group: see shutdown
    shutdown()
    return code


@contextmanager
def explained_files() -> Iterator[None]:
    """Explain a file or folder that a run cannot open while it starts: its settings name them.

    Once it trains, such an error may be a bug of the recipe, whose traceback is needed.
    """
    try:
        yield
    except Exception as error:
        problem = file_problem(error)
        if problem is None or os.environ.get(SHOW_TRACEBACK):
            raise
        raise OvertError(problem) from error


def sweep(arguments: argparse.Namespace, stop: StopSignal) -> int:
    """Return one process after another, each with its own run folder named after what differs."""
    runs = expand_sweep(arguments.overrides)
    # All are checked before the first one starts.
    configs = [load(run, arguments.config, arguments.package) for run in runs]
    names = sweep_names(runs, arguments.overrides, [config.exp_name for config in configs])
    failed = 0
    for index, (overrides, name) in enumerate(zip(runs, names, strict=True)):
        differing = [text for text in overrides if text not in arguments.overrides]
        command = [sys.executable, "-m", "overt.train", *overrides, f"exp_name={quoted(name)}"]
        for package in arguments.package:
            command += ["--package", package]
        if arguments.config:
            command += ["--config", arguments.config]
        print(f"[{index + 1}/{len(runs)}] {' '.join(differing)}", flush=True)
        code = run_one(command, stop)
        if code in STOPPED_EXIT_CODES or stop.name is not None:
            tell("the same command resumes this run and the rest")
            return INTERRUPTED_EXIT_CODE if code == INTERRUPTED_EXIT_CODE else PREEMPTED_EXIT_CODE
        failed += code != 0
    if failed:
        raise OvertError(f"{failed} of {len(runs)} runs failed; their messages are above")
    return 0


def run_one(command: list[str], stop: StopSignal) -> int:
    """A run in a separate process, which gets every signal that comes here; its exit code."""
    with subprocess.Popen(command) as child:
        stop.forward = child.send_signal
        try:
            code = child.wait()
        except KeyboardInterrupt:  # a terminal tells both: let the run save
            code = child.wait()
        stop.forward = None
    return code


class _Callable(ModuleType):
    """Make `overt.train` both this module and the function for notebooks."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from overt.api import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    leave(main())
