"""How long `overt runs`, `watch` and `report` take on long logs and many runs, and their memory.

    python benchmarks/watching.py [--rows 1000000] [--runs 1000] [--folder DIR]

Writes one run with a million rows of metrics and a folder of a thousand runs, then starts each
command in a fresh process: seconds from start to exit, and the largest resident memory. The
goal is below 2 s and 200 MB each; the imports of Python alone are listed as `nothing`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import zlib
from functools import cache
from pathlib import Path

RECIPE = "cotracker3_tiny"  # whose configuration the runs have, all 200 lines of it


@cache
def configuration() -> str:
    """Return the resolved configuration that every run has, but for three of its values."""
    from overt.config import load

    return load([f"recipe={RECIPE}"]).text


def configuration_of(name: str, steps: int, learning_rate: float) -> str:
    """Return a run's configuration: its name, length and learning rate differ."""
    text = re.sub(r"(?m)^exp_name: .*", f"exp_name: {name}", configuration())
    text = re.sub(r"(?m)^  num_steps: .*", f"  num_steps: {steps}", text, count=1)
    text = re.sub(r"(?m)^  metric_name: .*", "  metric_name: error", text, count=1)
    return re.sub(r"(?m)^  lr: .*", f"  lr: {learning_rate}", text, count=1)


def write_run(folder: Path, rows: int) -> None:
    """Write a run that logged `rows` rows, evaluated every hundredth, and was stopped."""
    checkpoint = folder / "checkpoints" / "step_00000100"
    checkpoint.mkdir(parents=True)
    manifest = {"step": 100, "serial": 1, "metric_name": "error", "metric": 0.5, "is_best": True}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (folder / "checkpoints" / "best").symlink_to(checkpoint.name)
    learning_rate = 1e-4 * (1 + zlib.crc32(folder.name.encode()) % 50)
    config = configuration_of(folder.name, rows * 10, learning_rate)
    (folder / "config.yaml").write_text(config)
    (folder / "command.txt").write_text("2026-01-01 10:00:00  overt train recipe=toy\n")
    began = 1.7e9
    with (folder / "metrics.jsonl").open("w") as file:
        for index in range(1, rows + 1):
            step = index * 10
            row = {
                "step": step, "time": began + index, "train/loss": 1 / index, "train/lr": 1e-3,
                "train/epoch": step / 1e4, "train/grad_norm": 0.5, "train/skipped_steps": 0,
                "train/seconds_per_step": 0.1, "train/samples_per_second": 80.0,
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")
            if index % 100 == 0:
                score = {"step": step, "time": began + index, "evaluation/error": 1 / index}
                file.write(json.dumps(score) + "\n")
    events = [
        {
            "time": began, "kind": "start", "host": "benchmark", "pid": 1, "device": "CPU",
            "world_size": 1, "python": "3.11.7", "torch": "2.13.0", "commit": "0123456789abcdef",
            "precision": "fp32", "platform": "Linux",
        },
        {"time": began + rows, "kind": "finish", "exit_code": 85, "step": rows * 10},
    ]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def measure(words: list[str]) -> tuple[float, float, float]:
    """Return seconds, seconds of the processor and megabytes of a command in a fresh process."""
    code = f"import sys; from overt.cli import main; sys.exit(main({words!r}))"
    began = time.perf_counter()
    # A process between, so that its largest child is this one and no earlier one.
    script = (
        "import resource, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {code!r}], stdout=subprocess.DEVNULL, check=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    kilobytes, busy = done.stdout.split()
    return time.perf_counter() - began, float(busy), int(kilobytes) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as home:
        long, many = Path(home) / "long", Path(home) / "many"
        write_run(long / "run", options.rows)
        for index in range(options.runs):
            write_run(many / f"run{index:04d}", 100)
        page = str(Path(home) / "report.html")
        size = (long / "run" / "metrics.jsonl").stat().st_size
        print(f"{options.rows:,} rows ({size / 1e6:.0f} MB), {options.runs:,} runs of 100 rows")
        commands = {
            "nothing": ["--version"],
            "runs, long": ["runs", str(long)],
            "watch, long": ["watch", "--once", str(long / "run")],
            "report, long": ["report", str(long / "run"), "--output", page],
            "runs, many": ["runs", str(many)],
            "report, many": ["report", *map(str, sorted(many.iterdir())), "--output", page],
        }
        for name, words in commands.items():
            seconds, busy, megabytes = measure(words)
            line = f"{name:<14}{seconds:7.2f} s {busy:7.2f} s of processor {megabytes:7.0f} MB"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
