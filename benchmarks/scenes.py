"""What each property of rendered clips is worth: a tracker trained without it, on held-out clips.

    python benchmarks/scenes.py --textures photographs/train --test data/moving --rows rows.jsonl
    python benchmarks/scenes.py --textures photographs/train --test data/moving --only everything \\
        --seeds 1 2 --rows rows.jsonl
    python benchmarks/scenes.py --show rows.jsonl

Each row trains recipe=cotracker3_small from random weights, at half its size (128 x 128, 16 frames,
128 points) for `--steps`, and scores one pass on the clips of `overt data photographs`. Repeat
the row `everything` with further seeds: a difference below their spread means nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from command import positive

from overt.run.reader import read_rows

EVERYTHING = "everything"
# The name of what is missing, and the settings without it, below data.procedural.
MISSING: dict[str, tuple[str, ...]] = {
    EVERYTHING: (),
    "photographs": (),
    "computed textures": ("made_textures=0",),
    "objects in front": ("present=0",),
    "bars, holes, boxes": ("thin=0", "holes=0", "boxes=0"),
    "rotation, zoom": ("rotation=0", "zoom=0"),
    "perspective, shear, bending": ("perspective=0", "shear=0", "bend=0"),
    "camera motion": ("static_camera=1",),
    "fast motion": ("spread=0", "fastest=0.3"),
    "static scenes": ("static_clips=0", "static_camera=0", "static_things=0"),
    "changes of light": ("lights=0",),
    "blur": ("motion_blur=0", "blur=0"),
    "noise, compression, grayscale": ("noisy=0", "compressed=0", "gray=0"),
}
SMALLER = (
    "data.crop_size=[128,128]", "data.sequence_len=16", "data.traj_per_sample=128",
    "model.model_resolution=[128,128]", "evaluation.fine_resolution=null", "model.eval_iters=4",
)  # fmt: skip
SCORES = {
    "average_jaccard": "AJ",
    "average_pts_within_thresh": "δ_avg",
    "occlusion_accuracy": "OA",
}

Row = dict[str, Any]


def words(options: argparse.Namespace, missing: str, seed: int, folder: str) -> list[str]:
    """Return the command line of a run."""
    textures = "null" if missing == "photographs" else str(options.textures)
    return [
        "recipe=cotracker3_small", *SMALLER, f"output_dir={folder}", "exp_name=run", f"seed={seed}",
        f"data.textures={textures}", f"evaluation.dataset_root={options.test}",
        *(f"data.procedural.{setting}" for setting in MISSING[missing]),
        f"training.num_steps={options.steps}", f"training.evaluate_every_steps={options.steps}",
        "training.evaluate_at_start=false", f"checkpoint.every_steps={options.steps}",
        "logging.use_tensorboard=false", *options.overrides,
    ]  # fmt: skip


def train(options: argparse.Namespace, missing: str, seed: int) -> Row:
    """Train and score a run in another process."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        with log.open("w") as output:
            command = [sys.executable, "-m", "overt.train", *words(options, missing, seed, folder)]
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
        if code:
            raise SystemExit(f"without {missing}: exit code {code}\n{log.read_text()[-2000:]}")
        row: Row = {"missing": missing, "seed": seed, "steps": options.steps}
        if options.overrides:
            row["settings"] = list(options.overrides)
        return row | last_scores(read_rows(Path(folder) / "run" / "metrics.jsonl"))


def last_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the scores of the last evaluation."""
    scored = [row for row in rows if f"evaluation/{next(iter(SCORES))}" in row]
    return {name: float(scored[-1][f"evaluation/{name}"]) for name in SCORES}


def name_of(row: Row) -> str:
    """Return what the run of a row was trained without, and the settings it was given."""
    missing = "nothing" if row["missing"] == EVERYTHING else row["missing"]
    return ", ".join([missing, *row.get("settings", [])])


def table(rows: Sequence[Row]) -> str:
    """Return the mean and spread of each row's seeds, and the difference to everything."""
    lines = [f"| without | {' | '.join(SCORES.values())} | AJ lost | seeds |"]
    lines += [f"| --- |{' --- |' * (len(SCORES) + 2)}"]
    runs: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: list(MISSING).index(row["missing"])):
        runs.setdefault(name_of(row), []).append(row)
    full = [100 * row["average_jaccard"] for row in runs.get("nothing", [])]
    for name, some in runs.items():
        means = [100 * statistics.fmean(row[score] for row in some) for score in SCORES]
        spread = statistics.stdev(100 * row["average_jaccard"] for row in some) if some[1:] else 0
        lost = f"{statistics.fmean(full) - means[0]:+.1f}" if full and name != "nothing" else ""
        lost += f" ± {spread:.1f}" if spread else ""
        cells = [f"{mean:.1f}" for mean in means] + [lost.strip(), str(len(some))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--textures", type=Path, metavar="FOLDER", help="photographs of training")
    parser.add_argument("--test", type=Path, metavar="FOLDER", help="of `overt data photographs`")
    parser.add_argument("--steps", type=positive, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=MISSING, default=list(MISSING), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append the rows to this file")
    parser.add_argument("--show", type=Path, metavar="FILE", help="the table of such a file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all runs")
    options = parser.parse_intermixed_args(arguments)
    if options.show is not None:
        print(table([dict(row) for row in read_rows(options.show)]))
        return 0
    if options.textures is None or options.test is None:
        parser.error("name --textures and --test, or --show FILE")
    runs = [(missing, seed) for seed in options.seeds for missing in options.only]
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda run: train(options, *run), runs):
            rows.append(row)
            if options.rows is not None:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
