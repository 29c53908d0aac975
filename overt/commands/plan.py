"""`overt plan recipe=NAME ... --devices 1,8,64`: predict memory and time of a run.

Batch and learning rate for each number of devices, memory per device without, and with, activation
checkpointing, the largest batches that fit, step time, time to finish and checkpoint size. Nothing
is trained and no GPU is needed: steps run on fake tensors, which have shapes but no data.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overt.checks import within
from overt.commands.arguments import config_options, finite_number, whole_number
from overt.config import Config, check, compose_values, load
from overt.errors import ConfigError
from overt.run.reader import number_of, read_rows
from overt.tools.report.text import duration


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    devices = read_devices(options.devices)
    within("--efficiency", options.efficiency, 0, 1, above=True)
    config = configure(options.overrides, options.config, options.package)
    measured = None
    if options.measured is not None:
        measured = seconds_per_sample(options.measured, options.measured_devices)
    elif options.seconds is not None:
        measured = options.seconds / samples_per_device(config, devices)

    from overt.tools.plan.communication import Network
    from overt.tools.plan.engine_step import recipe_on_cuda
    from overt.tools.plan.predict import Request, make_plan

    network = Network(gpus_per_node=options.gpus_per_node, network_gbit=options.network_gbit)
    request = Request(devices, options.gpu, options.efficiency, measured, options.samples, network)
    print(
        "steps on fake tensors: seconds for most recipes, a minute or two for LBM", file=sys.stderr
    )
    plan = make_plan(config, recipe_on_cuda(config), request)
    print(json.dumps(plan, indent=1) if options.json else render(plan))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[config_options()],
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="recipe=NAME, ..."
    )
    parser.add_argument(
        "--devices", default="1,2,4,8", metavar="N,N,...", help="how many; default: 1,2,4,8"
    )
    parser.add_argument("--gpu", default="H200", help="GPU model for --efficiency; default: H200")
    parser.add_argument(
        "--efficiency", type=float, default=0.3, help="achieved fraction of its peak; default: 0.3"
    )
    parser.add_argument("--measured", type=Path, metavar="RUN", help="step time of this run folder")
    positive, count = finite_number(0, above=True), whole_number(1)
    parser.add_argument("--seconds", type=positive, help="time of one step on one device")
    parser.add_argument(
        "--measured-devices", type=count, default=1, help="devices of that run; default: 1"
    )
    parser.add_argument("--samples", type=count, help="size of the data set, if it is elsewhere")
    parser.add_argument("--gpus-per-node", type=count, default=8, help="default: 8")
    parser.add_argument(
        "--network-gbit", type=positive, default=400.0, help="Gb/s per GPU; default: 400"
    )
    parser.add_argument("--json", action="store_true", help="all numbers, in bytes and seconds")
    return parser


def read_devices(text: str) -> tuple[int, ...]:
    """`1,2,8` as numbers."""
    try:
        devices = tuple(int(word) for word in text.split(","))
    except ValueError:
        devices = ()
    if not devices or min(devices) < 1 or max(devices) > 10**6:
        raise ConfigError(
            f"--devices {text}; write whole numbers from 1 to a million, such as 1,2,4,8"
        )
    return devices


def configure(overrides: Sequence[str], file: str | None, packages: Sequence[str]) -> Config:
    """Return the configuration; the data set need not exist."""
    return load(overrides, file, packages, needs_data=False)


def seconds_per_sample(run: Path, devices: int) -> float:
    """Return median seconds of a step over the samples of one device in it, from a run's log."""
    log, settings = run / "metrics.jsonl", run / "config.yaml"
    for path in (log, settings):
        if not path.is_file():
            raise ConfigError(f"--measured {run}: there is no {path.name}; name a run folder")
    key = "train/seconds_per_step"
    numbers = (number_of(row.get(key)) for row in read_rows(log))
    times = [seconds for seconds in numbers if seconds is not None and math.isfinite(seconds)]
    if not times:
        raise ConfigError(f"--measured {run}: its log has no {key} yet; let it run for longer")
    values = compose_values([], str(settings))
    package = str(values.recipe._target_).partition(".")[0]
    config = check(values, ["overt", "torch.optim", package])
    return float(statistics.median(times)) / samples_per_device(config, [devices])


def samples_per_device(config: Config, devices: Sequence[int]) -> int:
    """Of one step, with the first number of devices over which the batch can be split."""
    from overt.config.batch import plan_batches

    problems = []
    for count in devices:
        try:
            plan = plan_batches(config.training, count)
        except ConfigError as error:
            problems.append(error)
        else:
            return plan.batch_size * plan.accumulation_steps
    raise problems[0]


def render(plan: dict[str, Any]) -> str:
    """Return the plan as tables."""
    rows = [row for row in plan["devices"] if "problem" not in row]
    lines = [
        f"{plan['recipe']}: {plan['parameters'] / 1e6:.1f} M parameters trained, "
        f"{plan['frozen_parameters'] / 1e6:.1f} M frozen, {plan['precision']}; "
        f"a checkpoint takes {_bytes(plan['checkpoint_bytes'])}",
        *(_parts(name, parts) for name, parts in plan["parts"].items()),
        "",
        *_batch_table(rows),
        "",
        "memory per device, and the largest batch per device that fits",
        *_memory_table(rows),
        "",
        f"time ({plan['timing']})",
        *_time_table(rows),
    ]
    if any(row["steps"] is None for row in rows):
        lines.append(
            "  the data set does not exist here: give --samples N for steps and time to finish"
        )
    lines += [
        f"  {row['devices']} devices: {row['problem']}"
        for row in plan["devices"]
        if "problem" in row
    ]
    return "\n".join([*lines, *(f"  {note}" for note in plan["notes"])])


def _parts(name: str, parts: dict[str, int]) -> str:
    shown = ("parameters", "frozen", "gradients", "optimizer", "batch", "activations")
    words = ", ".join(f"{part} {_bytes(parts[part])}" for part in shown)
    label = "activations kept" if name == "plain" else "blocks recomputed"
    return f"  {label}, batch {parts['batch_size']} on one device: {words}"


def _batch_table(rows: list[dict[str, Any]]) -> list[str]:
    head = ["devices", "global batch", "per device", "lr none", "linear", "sqrt"]
    body = [
        [
            row["devices"],
            row["global_batch_size"],
            f"{row['batch_size']} x {row['accumulation_steps']}",
            *(f"{row['learning_rate'][rule]:.3g}" for rule in ("none", "linear", "sqrt")),
        ]
        for row in rows
    ]
    return _table(head, body)


def _memory_table(rows: list[dict[str, Any]]) -> list[str]:
    body: list[list[Any]] = []
    cards: list[str] = []
    for row in rows:
        for strategy, variants in row["memory_bytes"].items():
            for name, size in variants.items():
                fits = row["largest_batch"][strategy][name]
                cards = [f"in {card} GB" for card in fits]
                label = strategy if name == "plain" else f"{strategy}, recomputed"
                body.append(
                    [row["devices"], label, _bytes(size), *(n or "-" for n in fits.values())]
                )
    return _table(["devices", "strategy", "peak", *cards], body)


def _time_table(rows: list[dict[str, Any]]) -> list[str]:
    head = ["devices", "FLOPs", "step", "samples/s", "steps", "to finish", "scaling ddp / fsdp"]
    head.append("held up by")
    body = [
        [
            row["devices"],
            f"{row['flops_per_device'] / 1e12:.2f} T",
            f"{row['seconds_per_step']:.4f} s",
            f"{row['samples_per_second']:.1f}",
            "?" if row["steps"] is None else row["steps"],
            "?" if row["hours"] is None else duration(3600 * row["hours"]),
            " / ".join(f"{link['efficiency']:.0%}" for link in row["traffic"].values()) or "-",
            " / ".join(link["dominant"] for link in row["traffic"].values()) or "computing",
        ]
        for row in rows
    ]
    return _table(head, body)


def _table(head: list[str], rows: list[list[Any]]) -> list[str]:
    cells = [head, *([str(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]


def _bytes(count: float) -> str:
    if count < 2**20:
        return f"{math.ceil(count / 1024)} KiB"
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"
