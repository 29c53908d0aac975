"""`overt doctor`: check this machine. `overt doctor recipe=NAME ...`: check a run as well.

In one process, or in all processes of a run: `torchrun --nproc_per_node=8 -m overt doctor ...`, or
`srun python -m overt doctor ...`. Exit code 0: all checks pass; 1: a check fails (--strict: or
warns); 2: the configuration is rejected. Leaves no files behind.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overt.commands.arguments import config_options, finite_number, whole_number
from overt.config import Config, build_recipe, load
from overt.errors import OvertError

if TYPE_CHECKING:
    from overt.distributed import World
    from overt.launch_environment import Launch
    from overt.tools.doctor.report import Check

MEETING_MINUTES = 2.0
CONFIGURATION = "configuration"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[config_options()],
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="recipe=NAME, ..."
    )
    parser.add_argument("--folder", type=Path, help="where runs will be written (runs)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--samples", type=whole_number(1), default=8, help="how many samples to read (8)"
    )
    parser.add_argument(
        "--step-seconds", type=finite_number(0, above=True), help="time of one step, if known"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--strict", action="store_true", help="treat warnings as failures")
    return parser


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)

    from overt.distributed import barrier, gather_objects, shutdown
    from overt.tools.doctor.report import Level, as_json, merged, table

    checks, world = examine(options)
    label = f"rank {0 if world is None else world.rank} on {socket.gethostname()}"
    together = merged(gather_objects(checks), gather_objects(label))
    barrier()  # no rank closes a connection that another still reads
    shutdown()
    worst = max(check.level for check in together)
    rejected = any(check.name == CONFIGURATION for check in together)  # reported only then
    if world is None or world.is_main:
        print(json.dumps(as_json(together), indent=1) if options.json else table(together))
    return 2 if rejected else int(worst >= (Level.WARN if options.strict else Level.FAIL))


def examine(options: argparse.Namespace) -> tuple[list[Check], World | None]:
    """All checks of this process, in the order of the report; None where processes did not meet."""
    from overt.tools.doctor import cluster, machine
    from overt.tools.doctor.report import attempt, fail

    checks = [machine.versions()]
    config, refused = _configuration(options)
    if refused is not None:
        checks.append(refused)
    device = options.device if config is None else config.training.device
    precision = "fp32" if config is None else config.training.precision

    launch, world, met = _meet(device)
    if met is not None:
        checks.append(met)
    if world is None:
        remedy = "compare with `overt docs launch`"
        checks.append(attempt("GPUs", lambda: machine.gpus(device, None, precision), remedy))
        return checks, None
    different = cluster.same_versions(checks[0].finding)
    if different is not None:
        checks[0] = different

    gpu_world = world if world.device.type == "cuda" and world.world_size > 1 else None
    remedy = "see `nvidia-smi`; a device that fails here fails in training"
    checks.append(attempt("GPUs", lambda: machine.gpus(device, gpu_world, precision), remedy))
    checks.append(attempt("NCCL", lambda: machine.nccl(os.environ), remedy))
    workers = None if config is None else config.training.num_workers
    checks.append(machine.bytecode())
    checks.append(machine.loader_memory(workers))
    if workers is not None:
        checks.append(machine.processors(launch.local_world_size, workers))
    checks.append(cluster.clocks(world))
    folder = options.folder or Path("runs" if config is None else config.output_dir)
    checks.append(cluster.shared_folder(folder, world))
    if config is not None:
        checks += _examine_run(config, options, world)
    elif refused is None and (options.samples != 8 or options.step_seconds is not None):
        remedy = "name one: overt doctor recipe=NAME ..."
        checks.append(fail("run", "--samples and --step-seconds are about a run", remedy))
    return checks, world


def _configuration(options: argparse.Namespace) -> tuple[Config | None, Check | None]:
    from overt.tools.doctor.report import fail

    if not options.overrides and options.config is None:
        return None, None
    try:
        return load(options.overrides, options.config, options.package), None
    except OvertError as error:
        remedy = "`overt config recipe=NAME --explain` lists every key"
        return None, fail(CONFIGURATION, str(error), remedy)


def _meet(device: str) -> tuple[Launch, World | None, Check | None]:
    """Form the process group that the launcher describes, within minutes."""
    from overt.distributed import init_distributed
    from overt.launch_environment import Launch, read_launch
    from overt.tools.doctor import cluster, machine
    from overt.tools.doctor.report import fail

    launch = Launch(0, 1, 0, 1, "", "", 0)
    remedy = "start all processes with torchrun or srun (see `overt docs launch`)"
    try:
        launch = read_launch(os.environ)
        began = time.monotonic()
        world = init_distributed(device, MEETING_MINUTES)
        if world.world_size == 1:
            return launch, world, machine.rendezvous(launch)
        return launch, world, cluster.meeting(world, launch, time.monotonic() - began)
    except OvertError as error:
        return launch, None, fail("rendezvous", str(error), remedy)
    except RuntimeError as error:  # of the process group, which says little about the reason
        reason = str(error).splitlines()[0]
        problem = f"{launch.world_size} processes could not connect to each other: {reason}"
        remedy = (
            f"on every host, {launch.master_addr} must resolve to rank 0's host, and "
            f"port {launch.master_port} must be open; with several network cards set "
            "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME"
        )
        return launch, None, fail("rendezvous", problem, remedy)


def _examine_run(config: Config, options: argparse.Namespace, world: World) -> list[Check]:
    from overt.tools.doctor import run
    from overt.tools.doctor.report import attempt, fail

    remedy = "fix this first; the rest of the run was not checked"
    size = world.world_size
    checks = [attempt("batch", lambda: run.batches(config, size), remedy)]
    if config.checkpoint.init_from is not None:
        advice = "name a checkpoint that exists, or set checkpoint.init_from=null"
        checks.append(attempt("initial weights", lambda: run.initial_weights(config), advice))
    try:
        recipe = build_recipe(config)
        source = recipe.build_dataset()
    except (OvertError, OSError, ImportError) as error:
        return [*checks, fail("data", str(error), remedy)]
    checks.append(attempt("evaluation data", lambda: run.evaluation_data(recipe), remedy))
    try:
        size = run.checkpoint_bytes(config, recipe)
    except (OvertError, OSError) as error:  # of weights that the model starts from
        checks.append(fail("model", str(error), remedy))
    else:
        checks.append(attempt("disk space", lambda: run.disk_space(config, size), remedy))
    check, seconds = run.read_samples(source, config, options.samples, world.rank)
    checks.append(check)
    if seconds is not None:
        step_seconds = options.step_seconds or run.measured_step_seconds(config.run_dir)
        speed = attempt(
            "loader speed",
            lambda: run.loader_speed(config, seconds, size, step_seconds),
            remedy,
        )
        checks.append(speed)
    return checks
