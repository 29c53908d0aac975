"""The best checkpoint of a run: one that exists, by its own manifest. Imports no torch."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from overt.run.reader import count_of, number_of
from overt.tools.report.run import Best

NAME = re.compile(r"(?:step|epoch)_\d+(?:-\d+)?")  # of a checkpoint folder
LARGEST_MANIFEST = 2**22  # bytes; of thousands of ranks it has hundreds of kilobytes


def read_best(checkpoints: Path) -> Best | None:
    """Return the score of the checkpoint that `best` names, or of the last one saved as best."""
    try:
        name = os.readlink(checkpoints / "best")
    except OSError:  # no link, or a file system without links
        candidates = [] if not checkpoints.is_dir() else sorted(os.listdir(checkpoints))
        manifests = [
            manifest
            for candidate in candidates
            if (manifest := _manifest(checkpoints, candidate)).get("is_best") is True
        ]
        manifests.sort(key=lambda manifest: count_of(manifest.get("serial")) or 0)
        return _best(manifests[-1]) if manifests else None
    return _best(_manifest(checkpoints, name))


def _manifest(checkpoints: Path, name: str) -> dict[str, Any]:
    """Return a checkpoint's manifest; empty where there is none in this very folder."""
    folder = f"{checkpoints}/{name}"
    if not NAME.fullmatch(name) or os.path.islink(folder):
        return {}
    try:
        with open(f"{folder}/manifest.json", "rb") as file:
            manifest = json.loads(file.read(LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _best(manifest: dict[str, Any]) -> Best | None:
    value, step = number_of(manifest.get("metric")), count_of(manifest.get("step"))
    if value is None or math.isnan(value) or step is None:
        return None
    return Best(str(manifest.get("metric_name")), value, step)
