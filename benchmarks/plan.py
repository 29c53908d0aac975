"""Predicted against measured peak memory of every recipe at two batch sizes.

    python benchmarks/plan.py                                  on CUDA: predicts and measures
    python benchmarks/plan.py --recipes hjepa lbm
    python benchmarks/plan.py --only predicted --recipes cotracker3_tiny      anywhere

Measured is torch.cuda.max_memory_allocated over the engine's own steps after the first, including
augmentation on the device; predicted is what `overt plan` says of one device. Both take the
recipe's `example_batch`. Each number comes from a separate process, a few at a time: what others
hold does not count. Predictions see no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from command import guarded, positive

SIZES = {
    "cotracker3_offline": (1, 2),
    "cotracker3_online": (1, 2),
    "lbm": (2, 4),
    "hjepa": (64, 128),
    "ijepa_vitb16": (64, 128),
    "ijepa_vith14": (32, 64),
    "pcdiff": (4, 8),
    "blade_depthnet": (24, 48),
    "blade_posenet": (7, 28),
}
STEPS = 4


def overrides(size: int, further: list[str]) -> list[str]:
    return [
        f"training.batch_size={size}", "training.global_batch_size=null",
        "training.accumulation_steps=null", "training.num_epochs=null", "training.num_steps=1000",
        "training.compile=none", "training.cuda_graph=false",  # as predicted
        *further,
    ]  # fmt: skip


def measured(recipe: str, words: list[str]) -> int:
    """Peak bytes of the engine's step on this machine's GPU."""
    import torch
    from step import build, one_step

    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = build(recipe, words, folder, "cuda", ready=False)
        one_step(trainer)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(STEPS):
            one_step(trainer)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        trainer.close()
    return peak


def predicted(recipe: str, words: list[str]) -> int:
    """Peak bytes that the plan gives for one device."""
    from overt.config import build_recipe, load
    from overt.tools.plan.engine_step import EngineStep
    from overt.tools.plan.predict import device_memory

    config = load([f"recipe={recipe}", "data.root=none", *words])
    built = build_recipe(config)
    step = EngineStep(config, built, config.training.activation_checkpointing)
    size = config.training.batch_size
    assert size is not None
    memory = step.run(built.example_batch(size), size)
    return device_memory(memory, step.numbers, "single", 1)


KINDS: dict[str, Callable[[str, list[str]], int]] = {"measured": measured, "predicted": predicted}


def in_process(kind: str, recipe: str, words: list[str]) -> int | None:
    """The number from a separate process; None where it failed, with its last words shown."""
    environment = dict(os.environ)
    if kind == "predicted":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", kind, recipe, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = next(reversed(done.stderr.strip().splitlines()), "")
        print(f"{kind} {recipe} failed: {last}", file=sys.stderr)
        return None
    peak = int(json.loads(done.stdout.splitlines()[-1]))
    print(f"{kind} {recipe} {words[0]}: {peak / 2**30:.2f} GiB", file=sys.stderr)
    return peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", nargs="+", default=list(SIZES))
    parser.add_argument("--only", choices=tuple(KINDS))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for all recipes")
    parser.add_argument("--at-once", type=positive, default=2, help="processes; all share one GPU")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, recipe, *words = options.one
        print(json.dumps(KINDS[kind](recipe, words)))
        return 0
    cases = [(name, size) for name in options.recipes for size in SIZES.get(name, (1, 2))]
    with ThreadPoolExecutor(options.at_once) as beside:
        waiting = {
            kind: [
                beside.submit(in_process, kind, name, overrides(size, options.set))
                for name, size in cases
            ]
            for kind in KINDS
            if options.only in (None, kind)
        }
        found = {kind: [one.result() for one in futures] for kind, futures in waiting.items()}
    nothing = [None] * len(cases)
    print("| recipe | batch | predicted GiB | measured GiB | difference |\n|---|---|---|---|---|")
    worst = 0.0
    columns = (found.get(kind, nothing) for kind in ("predicted", "measured"))
    for (name, size), guess, true in zip(cases, *columns, strict=True):
        difference = ""
        if guess is not None and true is not None:
            worst = max(worst, abs(guess / true - 1))
            difference = f"{guess / true - 1:+.1%}"
        shown = ["" if value is None else f"{value / 2**30:.2f}" for value in (guess, true)]
        print(f"| {name} | {size} | {shown[0]} | {shown[1]} | {difference} |")
    if options.only is None:
        print(f"largest difference {worst:.1%}")
    return int(any(value is None for values in found.values() for value in values))


if __name__ == "__main__":
    raise SystemExit(guarded(main))
