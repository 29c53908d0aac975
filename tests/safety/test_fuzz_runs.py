"""Fuzz: command lines, run folders and checkpoints of random content; `make faults` has more."""

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing_claims import (
    fuzz_folders,
    fuzz_overrides,
    random_run,
    show,
)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Garbage of other tests, collected in the deepest recursion of a reader, would fail there."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_overrides_are_read_or_refused() -> None:
    fuzz_overrides(seed=1, count=25)


def test_forged_checkpoints_are_refused_or_trained_from() -> None:
    fuzz_folders(seed=1, count=8)


@pytest.mark.parametrize("seed", range(20))
def test_run_folders_are_shown(seed: int, tmp_path: Path) -> None:
    show(random_run(tmp_path / "runs/run", random.Random(seed)))
