"""How long a save blocks training: torch.save + fsync + rename against ours, in one run.

    python benchmarks/checkpoint.py                        100 M parameters with AdamW state, 1.2 GB
    python benchmarks/checkpoint.py --parameters 1000000   a quick look

The rounds alternate between the ways, so that all meet the same load of the machine. Files go to
a new folder under --folder (default: the current one) and are removed at the end.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from overt.checkpoint.manager import CheckpointManager

WIDTH = 1024
GOALS = {"foreground": 0.5, "background": 0.2}  # of torch.save's time


def build(parameters: int, device: str) -> tuple[nn.Module, torch.optim.AdamW]:
    """Square layers until there are about so many parameters, and AdamW after one step."""
    width = min(WIDTH, max(int(parameters**0.5), 1))
    layers = max(parameters // (width * width + width), 1)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def save_with_torch(path: Path, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    """What careful scripts do by hand."""
    hidden = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, hidden)
    descriptor = os.open(hidden, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    os.rename(hidden, path)


def resident_bytes(field: str) -> int:
    """`VmRSS`, now, or `VmHWM`, the peak, of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def measure(call: Callable[[], object], after: Callable[[], object]) -> tuple[float, int]:
    """Seconds until `call` returns, and peak extra memory until `after` is through as well."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_bytes("VmRSS")
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    after()
    return seconds, resident_bytes("VmHWM") - before


def run(parameters: int, rounds: int, folder: Path, device: str) -> dict[str, list[float]]:
    """Measure and print; the seconds of every round by way, without the first."""
    model, optimizer = build(parameters, device)
    count = sum(parameter.numel() for parameter in model.parameters())
    state_bytes = 12 * count
    seconds: dict[str, list[float]] = {"torch.save": [], "foreground": [], "background": []}
    memory: dict[str, int] = dict.fromkeys(seconds, 0)
    foreground = CheckpointManager(folder / "foreground", keep_best_n=0, keep_last_n=1)
    background = CheckpointManager(
        folder / "background", keep_best_n=0, keep_last_n=1, background=True
    )
    first: dict[str, float] = {}
    for turn in range(rounds + 1):
        for way, save, after in (
            (
                "torch.save",
                lambda: save_with_torch(folder / "torch.pt", model, optimizer),
                lambda: None,
            ),
            (
                "foreground",
                lambda turn=turn: foreground.save_checkpoint(0, model, optimizer, step=turn),
                foreground.wait,
            ),
            (
                "background",
                lambda turn=turn: background.save_checkpoint(0, model, optimizer, step=turn),
                background.wait,
            ),
        ):
            if device == "cuda":
                torch.cuda.synchronize()
            taken, extra = measure(save, after)
            memory[way] = max(memory[way], extra)
            if turn == 0:
                first[way] = taken
            else:
                seconds[way].append(taken)
    print(
        f"{count:,} parameters with AdamW state, {state_bytes / 1e9:.2f} GB, on {device}; "
        f"median of {rounds} alternating rounds after a first one; {os.cpu_count()} cores"
    )
    print(
        f"{'way':12}{'blocked s':>11}{'of torch':>10}{'goal':>7}{'first s':>9}{'extra memory':>15}"
    )
    base = statistics.median(seconds["torch.save"])
    for way, values in seconds.items():
        median = statistics.median(values)
        goal = f"{GOALS[way]:.2f}" if way in GOALS else ""
        print(
            f"{way:12}{median:11.3f}{median / base:10.2f}{goal:>7}{first[way]:9.3f}"
            f"{memory[way] / state_bytes:11.2f} copies"
        )
    return seconds


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="checkpoint-benchmark-") as folder:
        run(options.parameters, options.rounds, Path(folder), options.device)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
