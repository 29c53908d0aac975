"""How much of DDP's all-reduce the backward pass hides, by the size of its gradient buckets.

    python benchmarks/buckets.py hjepa                            two processes on one GPU
    python benchmarks/buckets.py cotracker3_tiny --device cpu     anywhere, to try the script

The processes share one device and reduce over Gloo through host memory, far slower than NCCL over
NVLink: what carries over is which sizes hide communication, not the seconds. A forward and backward
pass is timed on the recipe's `example_batch` with every bucket size, without communication (a hook
that reduces nothing), and with one all-reduce of all gradients after the pass. The waiting time is
what a bucket size adds to the pass without communication.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from command import guarded, need_device, positive
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from overt.config import build_recipe, load
from overt.engine.build import BUFFERS_STAY
from overt.engine.precision import AUTOCAST
from overt.nested import map_tensors

WARM_UP = 3  # DDP forms its buckets again after the first pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--processes", type=positive, default=2)
    parser.add_argument("--samples", type=positive, default=1, help="per process")
    parser.add_argument("--mib", type=float, nargs="+", default=[1, 5, 25, 100], metavar="MIB")
    parser.add_argument("--passes", type=positive, default=10)
    options = parser.parse_intermixed_args()
    need_device(options.device)
    build_recipe(load(config_words(options)))  # refused here, not in every process
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    spawn(measure, (options,), nprocs=options.processes)  # type: ignore[no-untyped-call]
    return 0


def config_words(options: argparse.Namespace) -> list[str]:
    """Return the configuration of a process."""
    words = [f"recipe={options.recipe}", "data.root=none", f"training.device={options.device}"]
    return [*words, *options.overrides]


def waiting(seconds: float, alone: float, reduced: float) -> str:
    """Describe what communication adds to a pass."""
    added = seconds - alone
    if added <= 0:
        return "waiting 0 s (within noise)"
    return f"waiting {added:.4f} s, {added / reduced:.2f} of the all-reduce alone"


def measure(rank: int, options: argparse.Namespace) -> None:
    """Print the table; the work of one process."""
    dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    device = torch.device(options.device)
    config = load(config_words(options))
    recipe = build_recipe(config)
    torch.manual_seed(0)
    model = recipe.build_model().to(device).train()
    batch = map_tensors(recipe.example_batch(options.samples), lambda tensor: tensor.to(device))
    batch = recipe.on_device(batch)
    counts = {"samples": torch.tensor(float(options.samples), device=device)}
    counts = {
        name: options.processes * count for name, count in (counts | recipe.counts(batch)).items()
    }
    dtype = AUTOCAST.get(config.training.precision)

    def run(module: nn.Module) -> None:
        with torch.autocast(device.type, dtype) if dtype else nullcontext():
            output = recipe.loss(module, batch, counts, 0)
        output.total.backward()  # type: ignore[no-untyped-call]

    def timed(work: Callable[[], Any]) -> float:
        """Return the median seconds, of the slowest process each time."""
        seconds = []
        for index in range(WARM_UP + options.passes):
            dist.barrier()
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            spent = torch.tensor(time.perf_counter() - began)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            if index >= WARM_UP:
                seconds.append(float(spent))
            model.zero_grad(set_to_none=False)
        return statistics.median(seconds)

    ddp = wrapped(model, 25)
    ddp.register_comm_hook(None, lambda _, bucket: finished(bucket.buffer()))
    alone = timed(partial(run, ddp))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.zeros(sum(parameter.numel() for parameter in parameters), device=device)
    reduced = timed(lambda: dist.all_reduce(gradients))
    rows = {}
    for mib in options.mib:
        rows[mib] = timed(partial(run, wrapped(model, mib)))
    if rank == 0:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
        mib = gradients.numel() * 4 / 2**20
        print(
            f"{options.recipe} on {name}, torch {torch.__version__}: {options.processes} processes "
            f"on one device, Gloo, {mib:.0f} MiB of gradients"
        )
        print(f"pass without communication {alone:.4f} s, all gradients at once {reduced:.4f} s")
        for size, seconds in rows.items():
            added = waiting(seconds, alone, reduced)
            print(f"buckets of {size:g} MiB: pass {seconds:.4f} s, {added}")
    dist.destroy_process_group()


def wrapped(model: nn.Module, mib: float) -> DistributedDataParallel:
    """Wrap a model as the engine does, with another bucket size."""
    return DistributedDataParallel(
        model, bucket_cap_mb=mib, gradient_as_bucket_view=True, **BUFFERS_STAY
    )


def finished(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Return gradients as if they had been reduced."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(gradients)
    return future


if __name__ == "__main__":
    raise SystemExit(guarded(main))
