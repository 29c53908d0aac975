"""A logger for tests, what it leaves in its files, and a picture to log."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from overt.run.log import MetricsLogger

SQUARE = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3) * 8  # (H, W, 3)


def plain(folder: Path, **options: Any) -> MetricsLogger:
    """A logger without TensorBoard, whose import takes seconds."""
    return MetricsLogger("test", folder, use_tensorboard=False, **options)


def rows(folder: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of a file, which must be strict JSON, without their times."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    found = []
    for line in (folder / file).read_text().splitlines():
        row = json.loads(line, parse_constant=refuse)
        assert row.pop("time") > 0
        found.append(row)
    return found
