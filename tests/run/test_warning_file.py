"""Warnings end up in the run folder, from whichever process they come."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.config.batch import BatchPlan
from overt.distributed import init_distributed
from overt.engine.loader import StepLoader
from overt.run.folder import RunPaths
from overt.run.warning_file import WarningFile


@pytest.fixture
def logger() -> logging.Logger:
    return logging.Logger("alone")


def test_warnings_are_appended_and_nothing_else(logger: logging.Logger, tmp_path: Path) -> None:
    path = RunPaths(tmp_path / "run").warnings_of(1)
    for word in ("first", "second \udcff"):
        logger.addHandler(handler := WarningFile(path))
        logger.info("not this")
        logger.warning("%s file", word)
        logger.removeHandler(handler)
    assert path == tmp_path / "run/warnings/rank_1.txt"
    lines = path.read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["first file", "second \\udcff file"]


def test_without_a_warning_there_is_no_file(logger: logging.Logger, tmp_path: Path) -> None:
    logger.addHandler(WarningFile(tmp_path / "run/rank_0.txt"))
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fails_stops_nothing(logger: logging.Logger, tmp_path: Path) -> None:
    (tmp_path / "warnings").write_text("a file where the folder should be")
    logger.addHandler(WarningFile(RunPaths(tmp_path).warnings_of(0)))
    logger.warning("lost")


class OneIsWarnedOf:
    """Samples of which one is warned of."""

    def __len__(self) -> int:
        return 8

    def sample(self, index: int, rng: np.random.Generator) -> int:
        if index == 3:
            logging.getLogger("overt.data.somewhere").warning("number %d is odd", index)
        return index


def test_what_a_loader_process_warns_of_is_written_down(tmp_path: Path) -> None:
    path = RunPaths(tmp_path).warnings_of(0)
    options: dict[str, Any] = {"seed": 0, "drop_last": True, "num_workers": 1}
    loader = StepLoader(
        OneIsWarnedOf(), list, BatchPlan(4, 1, 1), init_distributed("cpu"), warnings=path, **options
    )
    for _ in range(2):
        loader.next_step()
    loader.close()
    assert "number 3 is odd" in path.read_text()
