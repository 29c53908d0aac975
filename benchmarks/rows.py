"""The rows of the table of training steps in docs/benchmarks.md, one process each.

    python benchmarks/rows.py --output rows                    all of them, on one H200
    python benchmarks/rows.py --only lbm pcdiff --rows 25      some, with 25 kernels each
    python benchmarks/rows.py --only hjepa_tiny=hjepa_tiny --device cpu    another one, anywhere

Prints one line of the table for each: seconds per step, the first step (cold or with a warm cache
of compiled kernels), launches; on CUDA also memory, both floors and the share reached. What
benchmarks/step.py prints, kernel by kernel, goes to a file of each row below `--output`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from command import guarded, need_device, positive

from overt.errors import ConfigError, nearest

ROWS = {
    "cotracker3_offline": "cotracker3_offline",
    "cotracker3_offline_small": "cotracker3_offline model.recompute=[hidden,normed,correlation]",
    "cotracker3_online": "cotracker3_online",
    "lbm": "lbm model.recompute=maps",
    "pcdiff": "pcdiff",
    "pcdiff_64": "pcdiff training.global_batch_size=64",
    "hjepa": "hjepa",
    "ijepa_vitb16": "ijepa_vitb16 training.global_batch_size=128",
    "ijepa_vith14": "ijepa_vith14 training.global_batch_size=128 training.compile_recompute=false",
    "blade_depthnet": "blade_depthnet",
    "blade_posenet": "blade_posenet model.body.model=capsule",
}
HEAD = (
    "row", "s/step", "samples/s", "GiB", "first step s", "launches", "compile", "graph",
    "matrix s", "bytes s", "reached",
)  # fmt: skip


def measure(name: str, words: list[str], options: argparse.Namespace) -> dict[str, Any] | None:
    """Run benchmarks/step.py; None where it failed, which its file explains."""
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    numbers, text = folder / f"{name}.json", folder / f"{name}.txt"
    numbers.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("step.py")), *words]
    command += ["--device", options.device, "--steps", str(options.steps)]
    command += ["--rows", str(options.rows), "--json", str(numbers)]
    with text.open("w") as log:
        try:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=options.limit)
        except subprocess.TimeoutExpired:
            log.write(f"stopped after {options.limit} s\n")
    if not numbers.exists():
        return None
    read: dict[str, Any] = json.loads(numbers.read_text())
    return read


def line(name: str, row: dict[str, Any]) -> str:
    """Return a line of the table."""
    floors = [row["matrix_seconds"], row["copy_seconds"]]
    known = None not in floors
    cells = [
        name,
        f"{row['seconds']:.4f}",
        f"{row['samples_per_second']:.1f}",
        "" if row["gib"] is None else f"{row['gib']:.1f}",
        f"{row['first_seconds']:.0f}",
        f"{row['launches']:.0f}",
        str(row["compile"]),
        str(row["cuda_graph"]).lower(),
        *(f"{floor:.4f}" if known else "" for floor in floors),
        f"{max(floors) / row['seconds']:.0%}" if known else "",
    ]
    return "| " + " | ".join(cells) + " |"


def chosen_row(text: str) -> tuple[str, str]:
    """Return the name and the words of a row that `--only` names or defines."""
    name, _, words = text.partition("=")
    if not words and name not in ROWS:
        raise ConfigError(
            f"--only {text}: no such row{nearest(name, list(ROWS))}; use {', '.join(ROWS)}, or "
            "define one: NAME='RECIPE KEY=VALUE ...'"
        )
    return name, words or ROWS[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ROW", help="or NAME='RECIPE KEY=VALUE ...'")
    parser.add_argument("--output", default="benchmark_rows", help="folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=positive, default=6)
    parser.add_argument("--rows", type=int, default=25, help="kernels of each row")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a row at most")
    options = parser.parse_args()
    need_device(options.device)
    rows = ROWS
    if options.only:
        rows = dict(map(chosen_row, options.only))
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    failed = 0
    for name, words in rows.items():
        row = measure(name, words.split(), options)
        failed += row is None
        reason = f"{options.output}/{name}.txt"
        print(f"| {name} | failed: {reason} |" if row is None else line(name, row), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
