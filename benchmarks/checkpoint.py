"""How long a save blocks training: plain ways to write a checkpoint against CheckpointManager.

    python benchmarks/checkpoint.py                        100 M parameters with AdamW state, 1.2 GB
    python benchmarks/checkpoint.py --parameters 1000000   a quick look
    python benchmarks/checkpoint.py --processes 2          sharded by FSDP, against torch's
                                                           HuggingFaceStorageWriter and Reader

Every way makes its files durable (fsync) and atomic (rename). `+ CRC-32` reads the written files
again for their checksums, which CheckpointManager computes while it writes. The rounds alternate
between the ways, so that all meet the same load of the machine. Files go to a new folder under
--folder (default: the current one) and are removed at the end.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from command import guarded, need_device, positive
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.optim import AdamW

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.optimizer_state import describe
from overt.checkpoint.tensor_files import checksum_file

WIDTH = 1024
BYTES_PER_PARAMETER = 12  # the weight and AdamW's two moments, in float32
GOALS = {"foreground": 0.5, "background": 0.2}  # fraction of the first way's time


class Way(NamedTuple):
    """One way to save: `save(turn)` returns when training may go on, `wait` when all is written."""

    name: str
    save: Callable[[int], object]
    wait: Callable[[], object] = lambda: None


class Result(NamedTuple):
    """What one way costs."""

    seconds: list[float]  # blocked, by round; the first round is a warm-up
    memory: int  # bytes, at the peak beyond those before the save


def build(parameters: int, device: str, sharded: bool = False) -> tuple[nn.Module, AdamW]:
    """Make square layers with about this many parameters in all, and AdamW after one step."""
    width = min(WIDTH, max(int(parameters**0.5), 1))
    layers = max(parameters // (width * width + width), 1)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


# --- the ways --------------------------------------------------------------------------------


def whole_ways(folder: Path, model: nn.Module, optimizer: AdamW) -> list[Way]:
    """List the ways to save a model that one process holds."""
    by_format = partial(save_with_safetensors, folder / "safetensors", model, optimizer)
    return [
        Way("torch.save", lambda _: save_with_torch(folder / "torch.pt", model, optimizer)),
        Way("save_file", lambda _: by_format(sums=False)),
        Way("+ CRC-32", lambda _: by_format(sums=True)),
        *managed_ways(folder, model, optimizer),
    ]


def sharded_ways(folder: Path, model: nn.Module, optimizer: AdamW) -> list[Way]:
    """List the ways to save a model of which every process holds its shard."""
    by_torch = partial(save_with_hugging_face, folder / "hugging_face", model, optimizer)
    return [
        Way("HF writer", lambda _: by_torch(sums=False)),
        Way("+ CRC-32", lambda _: by_torch(sums=True)),
        *managed_ways(folder, model, optimizer),
    ]


def managed_ways(folder: Path, model: nn.Module, optimizer: AdamW) -> list[Way]:
    """List CheckpointManager's two ways: write before returning, or copy and write later."""
    ways = []
    for name in ("foreground", "background"):
        manager = CheckpointManager(
            folder / name, keep_best_n=0, keep_last_n=1, background=name == "background"
        )
        save = partial(_save_managed, manager, model, optimizer)
        ways.append(Way(name, save, manager.wait))
    return ways


def _save_managed(
    manager: CheckpointManager, model: nn.Module, optimizer: AdamW, turn: int
) -> None:
    manager.save_checkpoint(0, model, optimizer, step=turn)


def save_with_torch(path: Path, model: nn.Module, optimizer: AdamW) -> None:
    """Save as careful scripts do by hand."""
    hidden = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, hidden)
    sync(hidden)
    os.rename(hidden, path)


def save_with_safetensors(folder: Path, model: nn.Module, optimizer: AdamW, sums: bool) -> None:
    """Write the two files of a checkpoint by the format's own writer."""
    from safetensors.torch import save_file

    hidden = folder.with_suffix(".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    hidden.mkdir()
    moments, _ = describe(model, optimizer)
    for name, tensors in (("model", model.state_dict()), ("optimizer", moments)):
        file = hidden / f"{name}.safetensors"
        save_file(tensors, file)
        sync(file)
        if sums:
            checksum_file(file)
    sync(hidden)
    os.rename(hidden, folder)


def save_with_hugging_face(folder: Path, model: nn.Module, optimizer: AdamW, sums: bool) -> None:
    """Write a file of every rank by torch's writer of safetensors; all ranks call this together."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    hidden = folder.with_suffix(".tmp")
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    writer = HuggingFaceStorageWriter(str(hidden), save_distributed=True)
    save(sharded_state(model, optimizer), storage_writer=writer)
    if sums:
        checksum_file(hidden / f"shard-{dist.get_rank() + 1:05d}-model-00001-of-00001.safetensors")
        dist.barrier()
    if dist.get_rank() == 0:
        sync(hidden)
        os.rename(hidden, folder)


def sharded_state(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Name every tensor of the two, as shards.py does."""
    state = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    moments, _ = describe(model, optimizer)
    return state | {f"optimizer/{name}": tensor for name, tensor in moments.items()}


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# --- measuring -------------------------------------------------------------------------------


def resident_bytes(field: str) -> int:
    """Return `VmRSS`, now, or `VmHWM`, the peak, of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def measure(call: Callable[[], object], wait: Callable[[], object]) -> tuple[float, int]:
    """Return seconds until `call` returns, and peak extra memory until `wait` returns as well."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_bytes("VmRSS")
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    wait()
    return seconds, resident_bytes("VmHWM") - before


def alternate(ways: list[Way], rounds: int, device: str) -> dict[str, Result]:
    """Save `rounds` times by every way, after a warm-up."""
    results = {way.name: Result([], 0) for way in ways}
    for turn in range(rounds + 1):
        for way in ways:
            if device == "cuda":
                torch.cuda.synchronize()
            if dist.is_initialized():
                dist.barrier()
            taken, extra = measure(partial(way.save, turn), way.wait)
            before = results[way.name]
            results[way.name] = Result([*before.seconds, taken], max(before.memory, extra))
    return results


def seconds_to_load(folder: Path, model: nn.Module, optimizer: AdamW, rounds: int) -> list[float]:
    """Return the median times that torch's reader and ours take for the last sharded save."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    manager = CheckpointManager(folder / "foreground", keep_best_n=0, keep_last_n=1)
    seconds: list[list[float]] = [[], []]

    def by_torch() -> None:
        reader = HuggingFaceStorageReader(str(folder / "hugging_face"))
        load(sharded_state(model, optimizer), storage_reader=reader)

    def by_manager() -> None:
        manager.load_checkpoint(None, model, optimizer)

    for _ in range(rounds + 1):
        for index, read in enumerate((by_torch, by_manager)):
            dist.barrier()
            start = time.perf_counter()
            read()
            seconds[index].append(time.perf_counter() - start)
    return [statistics.median(values[1:]) for values in seconds]


def print_table(title: str, results: dict[str, Result], state_bytes: int) -> None:
    """Print one line for each way, compared with the first."""
    print(title)
    print(
        f"{'way':12}{'blocked s':>11}{'of first':>10}{'goal':>7}{'first s':>9}{'extra memory':>15}"
    )
    base = statistics.median(next(iter(results.values())).seconds[1:])
    for name, (seconds, memory) in results.items():
        median = statistics.median(seconds[1:])
        goal = f"{GOALS[name]:.2f}" if name in GOALS else ""
        print(
            f"{name:12}{median:11.3f}{median / base:10.2f}{goal:>7}{seconds[0]:9.3f}"
            f"{memory / state_bytes:11.2f} copies"
        )


def run(parameters: int, rounds: int, folder: Path, device: str) -> None:
    """Measure a model that this process holds alone."""
    model, optimizer = build(parameters, device)
    count = sum(parameter.numel() for parameter in model.parameters())
    results = alternate(whole_ways(folder, model, optimizer), rounds, device)
    size = BYTES_PER_PARAMETER * count
    print_table(
        f"{count:,} parameters with AdamW state, {size / 1e9:.2f} GB, on {device}; median of "
        f"{rounds} alternating rounds; {os.cpu_count()} cores",
        results,
        size,
    )


def run_shard(
    rank: int, processes: int, parameters: int, rounds: int, folder: Path, device: str
) -> None:
    """Measure a sharded model, as one of its processes; the main one prints."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder.resolve()}/meeting",
        rank=rank,
        world_size=processes,
    )
    model, optimizer = build(parameters, device, sharded=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    results = alternate(sharded_ways(folder, model, optimizer), rounds, device)
    by_torch, ours = seconds_to_load(folder, model, optimizer, rounds)
    if rank == 0:
        size = BYTES_PER_PARAMETER * count
        print_table(
            f"{count:,} parameters with AdamW state, {size / 1e9:.2f} GB, on {processes} x "
            f"{device}; median of {rounds} alternating rounds on rank 0; {os.cpu_count()} cores",
            results,
            size // processes,
        )
        print(f"load: HF reader {by_torch:.3f} s, ours with its check {ours:.3f} s")
    dist.destroy_process_group()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parameters", type=positive, default=100_000_000)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--processes", type=positive, default=1, help="2 or more: sharded by FSDP")
    options = parser.parse_args(arguments)
    need_device(options.device)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="checkpoint-benchmark-") as name:
        settings = (options.parameters, options.rounds, Path(name), options.device)
        if options.processes == 1:
            run(*settings)
        else:
            spawn(  # type: ignore[no-untyped-call]
                run_shard, (options.processes, *settings), options.processes
            )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
