"""Speed and memory of one training step of a recipe at its official size.

    python benchmarks/step.py cotracker3_offline               on CUDA, against the published code
    python benchmarks/step.py cotracker3_tiny --device cpu     anywhere, to try the script

The engine's own step runs on the recipe's `example_batch`, which is already on the device and
augmented: forward, loss, backward, clip, optimizer, guards and metrics; with gradient accumulation
every micro-batch of a step is this batch. Printed are seconds per step, samples per second, kernel
launches and host syncs per step, and the most expensive kernels; on CUDA also peak memory, the
floor (benchmarks/floor.py), the share of it that is reached, and the time in which no kernel runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from typing import Any, NamedTuple

import torch
from command import guarded, need_device, positive, writable_file
from floor import Counting
from torch.profiler import ProfilerActivity, profile

from overt.config import build_recipe, load
from overt.config.batch import plan_batches
from overt.distributed import World, init_distributed
from overt.engine.loader import MicroBatch, StepBatch
from overt.engine.strategy.graph import WARM_UP
from overt.engine.trainer import Trainer

STEPS_AT_A_TIME = 4


class Published(NamedTuple):
    """What the published implementation takes for this step on an H200, and the goal.

    docs/benchmarks.md has the same goals.
    """

    seconds: float
    gib: float
    goal_seconds: float
    goal_gib: float


PUBLISHED = {
    "cotracker3_offline": Published(0.572, 37.5, 0.070, 8.0),
    "cotracker3_online": Published(1.73, 49.3, 0.110, 10.0),
    "hjepa": Published(128 / 304, 26.4, 128 / 4500, 10.0),
    "ijepa_vitb16": Published(128 / 1159, 10.8, 128 / 5000, 10.8),
    "ijepa_vith14": Published(128 / 294, 50.2, 128 / 780, 35.0),
    "lbm": Published(1.67, 74.6, 0.140, 9.0),
    "blade_depthnet": Published(48 / 36, 19.1, 48 / 400, 10.0),
    "pcdiff": Published(1.21, 34.5, 0.035, 5.0),
}


# The published step was measured on clips of 60 frames; training draws up to 59.
AS_PUBLISHED = {"cotracker3_offline": ["data.random_sequence_len=null"]}


class OneBatch:
    """Replaces the data set: the trainer is handed its batch directly."""

    def __len__(self) -> int:
        return 10**6

    def sample(self, index: int, rng: Any) -> Any:
        raise AssertionError("the batch is given")


def build(
    name: str, overrides: list[str], folder: str, device: str, ready: bool = True
) -> tuple[Trainer, World]:
    """A trainer whose every step gets the same batch: ready on the device, or as a loader hands it
    over, so that copying and augmenting it are part of the step."""
    words = [f"recipe={name}", f"output_dir={folder}", "data.root=none", "training.num_workers=0"]
    words += [f"training.device={device}", "logging.use_tensorboard=false"]
    config = load([*words, *overrides])
    world = init_distributed(config.training.device)
    recipe = build_recipe(config)
    plan = plan_batches(config.training, world.world_size)
    batch = recipe.example_batch(plan.batch_size)
    recipe.build_dataset = OneBatch  # type: ignore[method-assign]
    recipe.check_evaluation_data = lambda: None  # type: ignore[method-assign]  # nothing is scored
    recipe.stackable = True  # all its samples have one shape
    trainer = Trainer(config, recipe, world)
    if ready:
        batch = trainer.to_device(batch)
    micro_batches = [MicroBatch((), batch, is_padding=False)] * plan.accumulation_steps
    step_batch = StepBatch(micro_batches, plan.batch_size * plan.accumulation_steps, 0.0)
    trainer.loader.next_step = lambda: step_batch  # type: ignore[method-assign]
    return trainer, world


def one_step(trainer: Trainer) -> None:
    trainer.train_step()


def measure(trainer: Trainer, world: World, steps: int) -> tuple[float, float, float | None]:
    """Seconds of the first step, median seconds of the others, peak GiB on CUDA."""
    cuda = world.device.type == "cuda"

    def synchronize() -> None:
        if cuda:
            torch.cuda.synchronize()

    began = time.perf_counter()
    one_step(trainer)
    synchronize()
    first = time.perf_counter() - began
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    # Enough steps for CUDA graphs to be recorded, also where steps differ: a replay takes its
    # memory out of sight.
    for _ in range(4 * (WARM_UP + 1) if trainer.graphed else 2):
        one_step(trainer)
    synchronize()
    times = []
    for _ in range(steps):
        # Several steps between two looks at the clock: in training, too, nobody waits for a step.
        began = time.perf_counter()
        for _ in range(STEPS_AT_A_TIME):
            one_step(trainer)
        synchronize()
        times.append((time.perf_counter() - began) / STEPS_AT_A_TIME)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    return first, statistics.median(times), peak


def count_syncs(trainer: Trainer) -> int:
    """Times the host waits for the device within one step."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one_step(trainer)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(item.message) for item in caught)


def busy(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Time from the first start to the last end, and how much of it nothing runs."""
    spans = sorted(spans)
    idle, end = 0.0, spans[0][0]
    for start, stop in spans:
        idle += max(0.0, start - end)
        end = max(end, stop)
    return end - spans[0][0], idle


def most_expensive(trainer: Trainer, cuda: bool, rows: int) -> tuple[int, str]:
    """Kernel launches of a step, and a table of what takes its time."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as record:
        one_step(trainer)
        if cuda:
            torch.cuda.synchronize()
    averages = record.key_averages()
    launches = sum(
        int(row.count)
        for row in averages
        if "LaunchKernel" in row.key or row.key == "cuLaunchKernel"
    )
    if not cuda:
        return launches, averages.table(sort_by="self_cpu_time_total", row_limit=rows)
    kernels = [row for row in averages if row.self_device_time_total > 0 and not row.cpu_time_total]
    kernels.sort(key=lambda row: -row.self_device_time_total)
    lines = [
        f"  {row.self_device_time_total / 1e3:8.2f} ms  {row.count:5d} x  {row.key[:90]}"
        for row in kernels[:rows]
    ]
    total = sum(row.self_device_time_total for row in kernels) / 1e3
    number = sum(int(row.count) for row in kernels)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in record.events() or ()
        if str(event.device_type).endswith("CUDA")
    ]
    whole, idle = busy(spans)
    lines = [
        f"  {total:8.2f} ms  {number:5d} x  all kernels",
        f"  {idle / 1e3:8.2f} ms           no kernel runs, of {whole / 1e3:.2f} ms in between",
        *lines,
    ]
    return launches, "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=positive, default=6)
    parser.add_argument("--rows", type=int, default=10, help="kernels shown")
    parser.add_argument(
        "--no-floor", dest="floor", action="store_false", help="do not count what has to be done"
    )
    parser.add_argument(
        "--json", type=writable_file, metavar="FILE", help="also write the numbers there"
    )
    options = parser.parse_intermixed_args()
    need_device(options.device)
    words = [*AS_PUBLISHED.get(options.recipe, ()), *options.overrides]
    with tempfile.TemporaryDirectory() as folder:
        trainer, world = build(options.recipe, words, folder, options.device)
        cuda = world.device.type == "cuda"
        counting = Counting(options.recipe, words) if options.floor and cuda else None
        first, seconds, peak = measure(trainer, world, options.steps)
        syncs = count_syncs(trainer) if cuda else 0
        launches, table = most_expensive(trainer, cuda, options.rows)
        trainer.close()
    name = torch.cuda.get_device_name() if cuda else "CPU"
    samples = trainer.plan.global_batch_size / seconds
    print(f"{options.recipe} {' '.join(options.overrides)} on {name}, torch {torch.__version__}")
    print(f"  {seconds:.4f} s/step, {samples:.2f} samples/s", end="")
    print("" if peak is None else f", peak {peak:.2f} GiB")
    print(f"  first step {first:.1f} s, {launches} launches and {syncs} host syncs per step")
    training = trainer.speed.speed.training
    print(f"  compile={training.compile}, cuda_graph={training.cuda_graph}")
    floor = counting.result() if counting else None
    if floor is not None and peak is not None:
        floor = floor.within(peak * 2**30)
        print(f"  {floor.words(seconds)}")
    if options.json:
        row = {
            "seconds": seconds,
            "samples_per_second": samples,
            "gib": peak,
            "first_seconds": first,
            "launches": launches,
            "syncs": syncs,
            "compile": training.compile,
            "cuda_graph": training.cuda_graph,
            "matrix_seconds": floor.matrix_seconds if floor else None,
            "copy_seconds": floor.copy_seconds if floor else None,
        }
        options.json.write_text(json.dumps(row) + "\n")
    if peak is not None and options.recipe in PUBLISHED:
        other = PUBLISHED[options.recipe]
        print(f"  published {other.seconds:.3g} s, {other.gib} GiB", end=": ")
        print(
            f"{other.seconds / seconds:.2f} x faster, {peak / other.gib:.2f} x the memory", end=""
        )
        print(f" (goal {other.goal_seconds:.3g} s, {other.goal_gib} GiB)")
    print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
