"""`overt demo`: a real training run in minutes; prints each command before running it.

Renders synthetic videos with fast motion, trains a tiny tracker on them, scores its best checkpoint
on held-out videos, draws its tracks next to the ground truth, and writes a report. Then it scores
the tracker behind `overt track` on moving photographs, next to OpenCV's Lucas-Kanade and DIS flow
if OpenCV is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from overt.checkpoint.trained import shipped_weights
from overt.config.overrides import quoted
from overt.errors import OvertError, error_of
from overt.run.reader import read_rows
from overt.tracker import SHIPPED

RECIPE = "cotracker3_tiny"
# Videos with about three times faster motion than those the small tracker was trained on.
TASK = (
    "data.synthetic.seed=1",
    "data.synthetic.speed=10",
    "data.synthetic.shapes=8",
    "optimizer.lr=5e-4",
    "training.evaluate_at_start=true",
    "training.num_steps=250",
    "training.evaluate_every_steps=125",
    "checkpoint.every_steps=125",
)
PHOTOGRAPHS = Path(__file__).parents[1] / "photographs"
ROWS = (
    ("delta_avg", "average_pts_within_thresh", "points within 1, 2, 4, 8, 16 px of the truth"),
    ("AJ", "average_jaccard", "position and occlusion together"),
    ("OA", "occlusion_accuracy", "visible or occluded, fraction correct"),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", default="runs/demo", help="output folder")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="for the training run"
    )
    options = parser.parse_intermixed_args(arguments)
    folder = Path(options.folder)
    run = folder / RECIPE
    began = time.perf_counter()
    data, weights = str(folder / "data"), os.path.relpath(shipped_weights(RECIPE))
    words = [f"recipe={RECIPE}", f"output_dir={quoted(str(folder))}", f"data.root={quoted(data)}"]
    words += [f"checkpoint.init_from={quoted(weights)}"]
    show("train", [*words, *TASK, *options.overrides])
    show("evaluate", [f"checkpoint={run / 'checkpoints' / 'best'}"])
    show("report", [str(run)])
    show_photographs(folder / "photographs")
    minutes = (time.perf_counter() - began) / 60
    scores = json.loads((run / "evaluation" / "scores.json").read_text())["scores"]
    print(closing_words(run, first_scores(run), scores, minutes))
    return 0


def show_photographs(folder: Path) -> None:
    """Score the tracker that ships on a clip of two photographs that it was not trained on."""
    if not folder.exists():
        # The first clip of seed 0 is one of the few in which nothing moves.
        clip = ["--videos", "1", "--seed", "3"]
        show("data", ["photographs", str(folder), str(PHOTOGRAPHS), *clip])
    words = [f"recipe={SHIPPED}", f"checkpoint={shipped_weights(SHIPPED)}"]
    words += [f"evaluation.dataset_root={quoted(str(folder))}", f"output={folder / 'scores'}"]
    baselines = ["--baselines"] if find_spec("cv2") else []
    show("evaluate", [*words, *baselines])


def show(verb: str, words: list[str]) -> None:
    """Print a command as one would type it, and run it with this Python."""
    print(f"\n$ overt {verb} {shlex.join(words)}\n", flush=True)
    result = subprocess.run([sys.executable, "-m", "overt", verb, *words], check=False)
    if result.returncode:
        code = result.returncode
        raise error_of(code)(f"that command ended with exit code {code}; see above")


def first_scores(run: Path) -> dict[str, float]:
    """Those of the evaluation before the first step, from the run's log."""
    row = next(read_rows(run / "metrics.jsonl"), None)
    if row is None:
        raise OvertError(f"{run / 'metrics.jsonl'} has no rows; remove {run} and start again")
    return {name.removeprefix("evaluation/"): value for name, value in row.items()}


def closing_words(
    run: Path, before: dict[str, float], scores: dict[str, float], minutes: float
) -> str:
    """Return scores next to two baselines, the paths of all files, and next commands."""
    lines = [
        "",
        f"{'on unseen videos':<18}{'trained':>9}{'before':>9}{'static':>9}",
        *(
            f"{label:<18}{scores[name]:>9.1%}{before[name]:>9.1%}{scores['static_' + name]:>9.1%}"
            f"   {meaning}"
            for label, name, meaning in ROWS
        ),
        "",
        f"report      {run / 'report.html'}  (opens in any browser)",
        f"picture     {run / 'evaluation' / 'tracks.png'}",
        f"photographs {run.parent / 'photographs' / 'scores' / 'tracks.png'}",
        f"log         {run / 'metrics.jsonl'}  (tensorboard --logdir {run})",
        f"checkpoint  {(run / 'checkpoints' / 'best').resolve()}",
        f"time        {minutes:.1f} minutes",
        "",
        "Next: follow a grid of points through a video, then train your own on two processes:",
        f"  overt track {run.parent / 'data' / '0000' / 'frames'} "
        f"--checkpoint {run / 'checkpoints' / 'best'} --grid 10",
        f"  torchrun --nproc_per_node=2 -m overt.train recipe={RECIPE} exp_name=mine",
    ]
    return "\n".join(lines)
