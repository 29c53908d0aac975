"""Does it learn? H-JEPA on real digits, beside a control that cannot and a setting that collapses.

    python examples/jepa/digits.py

Three runs on scikit-learn's 1,797 digits, minutes each on two CPU cores. Labels are used for k-NN
on the held-out third only. The loss cannot judge: the control has the lowest. Settings are those of
hjepa_digits; words such as training.num_steps=600 change all three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from overt.config import build_recipe, load
from overt.data.images.digits import write_digits
from overt.errors import StopError
from overt.run.reader import read_rows

PACKAGE = str(Path(__file__).parent)
# Narrow layers with small weights and a slow target: the features of all patches become alike.
COLLAPSING = [
    "model.initialization=normal",
    "model.ema.momentum=0.99",
    "optimizer.lr=1e-3",
    "training.batch_size=128",
    "training.num_steps=500",
    "evaluation.collapse.stop_after=3",
]
RUNS = {
    "digits_learn": ["recipe=hjepa_digits"],
    "digits_control": ["recipe=jepa_misled"],
    "digits_collapse": ["recipe=hjepa_digits", *COLLAPSING],
}


class Found(NamedTuple):
    """What became of a run."""

    knn: tuple[float, float]  # before and after; NaN where it was stopped
    rank: tuple[float, float]  # effective rank of the target's tokens
    std: tuple[float, float]  # and their deviation
    loss: float
    alarm: str | None  # why it stopped itself
    seconds: float


def main(arguments: Sequence[str] | None = None) -> dict[str, Found]:
    """Train all three and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=Path("data/digits"))
    parser.add_argument("--only", choices=RUNS, action="append", help="one run of the three")
    options = parser.parse_intermixed_args(arguments)
    train, test = write_digits(options.data)
    data = [f"data.root={train}", f"data.val_root={test}"]
    found = {
        name: train_once([*RUNS[name], *data, f"exp_name={name}", *options.words])
        for name in options.only or RUNS
    }
    print(table(found))
    return found


def train_once(words: Sequence[str]) -> Found:
    """One run from the start, in this process."""
    from overt import Trainer, init_distributed

    config = load([*words, "checkpoint.resume=never"], packages=[PACKAGE])
    trainer = Trainer(config, build_recipe(config), init_distributed(config.training.device))
    began, alarm = time.perf_counter(), None
    try:
        trainer.train()
    except StopError as error:
        alarm = str(error)
    rows = list(read_rows(config.run_dir / "metrics.jsonl"))

    def ends(name: str) -> tuple[float, float]:
        values = [row[name] for row in rows if name in row]
        return values[0], values[-1]

    return Found(
        knn=ends("evaluation/knn_top1"),
        rank=ends("train/target_token_rank"),
        std=ends("train/target_token_std"),
        loss=ends("train/loss")[1],
        alarm=alarm,
        seconds=time.perf_counter() - began,
    )


def table(found: dict[str, Found]) -> str:
    """The runs as rows of Markdown."""
    lines = [
        "| run | k-NN, held-out third | rank of tokens | deviation | loss | minutes | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in found.items():
        knn = f"{100 * run.knn[0]:.1f} -> {100 * run.knn[1]:.1f}"
        lines.append(
            f"| {name} | {'stopped' if run.alarm else knn} | {run.rank[0]:.1f} -> {run.rank[1]:.1f}"
            f" | {run.std[0]:.2f} -> {run.std[1]:.2f} | {run.loss:.4f} | {run.seconds / 60:.1f} "
            f"| {run.alarm.partition(' (')[0] if run.alarm else ''} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
