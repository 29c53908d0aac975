"""Muon and AdamW side by side: resumed bit for bit, on any number of ranks, sharded or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_runs import losses_by_step, read_rows, same_bits, train_toy, weights

RUNS = Callable[..., list[Any]]
MUON = ["optimizer=muon", "optimizer.lr=0.01"]
# Dropout draws from the global generator, the average has its own weights, 5 steps make an epoch.
EVERYTHING = [
    *MUON,
    "model.dropout=0.3",
    "training.ema_momentum=0.9",
    "checkpoint.every_steps=1",
]
GLOBAL_FOUR = [*MUON, "training.global_batch_size=4", "training.batch_size=1"]
# Newton-Schulz iterations run in bfloat16: a gradient that differs in its last bit moves an update
# by up to 2^-8 of itself.
BFLOAT16 = 0.01


def curve(run: Path, name: str = "train/loss") -> list[float]:
    return [float(row[name]) for row in read_rows(run) if name in row]


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_killed_and_resumed(size: int, run_processes: RUNS, tmp_path: Path) -> None:
    run_processes(train_toy, size, tmp_path / "whole", *EVERYTHING)
    codes = run_processes(train_toy, size, tmp_path, *EVERYTHING, dies=True, die_at=7)
    assert -9 in codes
    run_processes(train_toy, size, tmp_path, *EVERYTHING)
    whole, resumed = tmp_path / "whole/toy", tmp_path / "toy"
    for part in ("model", "optimizer", "ema", "rng"):
        assert same_bits(weights(resumed, 12, part), weights(whole, 12, part)), part
    assert losses_by_step(resumed) == losses_by_step(whole)
    entries = {key.rpartition("/")[2] for key in weights(resumed, 12, "optimizer")}
    assert entries == {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}


def test_two_processes_equal_one(run_processes: RUNS, tmp_path: Path) -> None:
    for size in (1, 2):
        run_processes(train_toy, size, tmp_path / str(size), *GLOBAL_FOUR)
    expected = curve(tmp_path / "1/toy")
    assert len(expected) == 12
    assert curve(tmp_path / "2/toy") == pytest.approx(expected, rel=BFLOAT16)


def test_sharded_like_ddp(run_processes: RUNS, tmp_path: Path) -> None:
    run_processes(train_toy, 2, tmp_path / "ddp", *GLOBAL_FOUR)
    run_processes(train_toy, 2, tmp_path / "fsdp", *GLOBAL_FOUR, "training.strategy=fsdp")
    for name in ("train/loss", "train/grad_norm", "evaluation/error"):
        expected = curve(tmp_path / "ddp/toy", name)
        assert curve(tmp_path / "fsdp/toy", name) == pytest.approx(expected, rel=BFLOAT16), name


@pytest.mark.long  # tests/distributed/test_shard_checkpoints.py shows it with AdamW
def test_a_sharded_run_resumes_bit_for_bit(run_processes: RUNS, tmp_path: Path) -> None:
    settings = [*EVERYTHING, "training.strategy=fsdp"]
    run_processes(train_toy, 2, tmp_path / "whole", *settings)
    run_processes(train_toy, 2, tmp_path, *settings, dies=True, die_at=7)
    run_processes(train_toy, 2, tmp_path, *settings)
    assert losses_by_step(tmp_path / "toy") == losses_by_step(tmp_path / "whole/toy")
