"""Does PCDiff diverge when the rate grows with the batch? Short runs on synthetic skulls.

    python benchmarks/batch_scaling.py --samples 16000 --workers 14                       on CUDA
    python benchmarks/batch_scaling.py pcdiff_tiny --samples 48 --batches 4 8             to try

For each batch and each rule (none, linear, sqrt) one run from the same weights sees as many samples
as the others. Printed are the mean noise loss of its last tenth, the largest after its first tenth,
and steps whose gradient or loss was not finite: a run that diverges shows in one of them.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from command import guarded, positive

from overt.config import build_recipe, load
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer

RULES = ("none", "linear", "sqrt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="pcdiff_medium")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--batches", type=positive, nargs="+", default=[8, 32, 128])
    parser.add_argument("--samples", type=positive, default=16000, help="seen by each run")
    parser.add_argument("--skulls", type=positive, default=60)
    parser.add_argument("--rate", type=float, default=2e-4, help="at a batch of 8, as published")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/batch_scaling"))
    options = parser.parse_intermixed_args()
    print("batch  rule    rate      steps  last loss  largest loss  not finite")
    for batch in options.batches:
        for rule in RULES[: 1 if batch == 8 else None]:
            losses = run(options, batch, rule)
            factors = {"none": 1.0, "linear": batch / 8, "sqrt": math.sqrt(batch / 8)}
            rate = options.rate * factors[rule]
            tenth = max(len(losses) // 10, 1)
            finite = np.isfinite(losses)
            later = losses[tenth:][finite[tenth:]]
            print(
                f"{batch:5d}  {rule:6s}  {rate:.2e}  {len(losses):5d}  {later[-tenth:].mean():9.4f}"
                f"  {later.max():12.4f}  {int((~finite).sum()):10d}",
                flush=True,
            )
    return 0


def run(options: argparse.Namespace, batch: int, rule: str) -> np.ndarray:
    """Train, and return the loss of every step; constant rate, no clipping, no average."""
    words = [
        f"recipe={options.recipe}", f"data.root={options.output / 'data'}", "schedule=constant",
        f"output_dir={options.output / 'runs'}", f"exp_name={rule}_{batch}",
        f"data.synthetic.count={options.skulls}", f"training.global_batch_size={batch}",
        f"training.num_steps={max(options.samples // batch, 2)}", f"optimizer.lr={options.rate}",
        f"optimizer.lr_scaling={rule}", "optimizer.lr_base_batch=8", "training.ema_momentum=null",
        "training.grad_clip_norm=null", "training.evaluate_every_steps=null",
        "training.evaluate_at_start=false", f"training.num_workers={options.workers}",
        "logging.use_tensorboard=false", "logging.every_steps=1", "checkpoint.metric_name=null",
        *options.overrides,
    ]  # fmt: skip
    config = load(words)
    trainer = Trainer(config, build_recipe(config), init_distributed(config.training.device))
    trainer.train()
    rows = map(json.loads, (config.run_dir / "metrics.jsonl").read_text().splitlines())
    return np.array([row["train/loss"] for row in rows if "train/loss" in row], dtype=float)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
