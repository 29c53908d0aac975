"""`overt demo`: a real training run in minutes, each command shown before it runs.

Synthetic videos are made, a small CoTracker3 is trained on them by two processes, its best
checkpoint is scored on videos it has not seen, and its tracks are drawn beside the true ones.
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
from pathlib import Path

from overt.errors import OvertError

RECIPE = "cotracker3_tiny"
PROCESSES = 2
ROWS = (
    ("delta_avg", "average_pts_within_thresh", "points within 1, 2, 4, 8, 16 px of the truth"),
    ("AJ", "average_jaccard", "position and occlusion together"),
    ("OA", "occlusion_accuracy", "visible or occluded told apart"),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", default="runs/demo", help="where everything goes")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for the training run")
    options = parser.parse_intermixed_args(arguments)
    folder = Path(options.folder)
    run = folder / RECIPE
    began = time.perf_counter()
    words = [f"recipe={RECIPE}", f"output_dir={folder}", f"data.root={folder / 'data'}"]
    torchrun = ["torchrun", "--standalone", f"--nproc_per_node={PROCESSES}", "-m", "overt.train"]
    show([*torchrun, *words, *options.overrides])
    show(["overt", "evaluate", f"checkpoint={run / 'checkpoints' / 'best'}"])
    minutes = (time.perf_counter() - began) / 60
    scores = json.loads((run / "evaluation" / "scores.json").read_text())["scores"]
    print(closing_words(run, scores, minutes))
    return 0


def show(words: list[str]) -> None:
    """Print a command as one would type it, and run it with this Python."""
    print(f"\n$ {shlex.join(words)}\n", flush=True)
    module = {"torchrun": "torch.distributed.run"}.get(words[0], words[0])
    # One thread for each process: the cores are shared out by processes.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", module, *words[1:]]
    result = subprocess.run(command, env=environment, check=False)
    if result.returncode:
        raise OvertError(f"that command ended with exit code {result.returncode}; see above")


def closing_words(run: Path, scores: dict[str, float], minutes: float) -> str:
    """The scores beside those of points that never move, where things are, what to try next."""
    lines = [
        "",
        f"{'on unseen videos':<18}{'trained':>9}{'static':>9}",
        *(
            f"{label:<18}{scores[name]:>9.1%}{scores['static_' + name]:>9.1%}   {meaning}"
            for label, name, meaning in ROWS
        ),
        "",
        f"picture     {run / 'evaluation' / 'tracks.png'}",
        f"log         {run / 'metrics.jsonl'}  (tensorboard --logdir {run})",
        f"checkpoint  {(run / 'checkpoints' / 'best').resolve()}",
        f"time        {minutes:.1f} minutes",
        "",
        "Next: follow a grid of points through a video, then train on a data set of your own:",
        f"  overt track {run.parent / 'data' / '0000' / 'frames'} "
        f"--checkpoint {run / 'checkpoints' / 'best'} --grid 10",
        "  overt train recipe=cotracker3_offline data.root=FOLDER_OF_KUBRIC_SEQUENCES",
    ]
    return "\n".join(lines)
