"""Checkpoints under the names of older projects, for scripts that read those."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from overt.checkpoint import plain_values
from overt.files.atomic import new_file
from overt.files.weight_files import read_safetensors

logger = logging.getLogger(__name__)


def write_legacy_names(checkpoint: Path, is_best: bool) -> None:
    """Write checkpoint_latest.pth, and checkpoint_best.pth, beside a checkpoint folder.

    They hold `epoch`, `metrics` and `model_state_dict`. A sharded checkpoint has no such file.
    """
    weights = checkpoint / "model.safetensors"
    if not weights.is_file():
        logger.warning("checkpoint.legacy_names: %s is sharded and has no single file", checkpoint)
        return
    state = plain_values.decode((checkpoint / "state.json").read_bytes())
    content = {
        "epoch": state["epoch"],
        "metrics": state["metrics"],
        "model_state_dict": read_safetensors(weights)[0],  # tied ones under all their names
    }
    for name in ("latest", "best") if is_best else ("latest",):
        with new_file(checkpoint.parent / f"checkpoint_{name}.pth") as hidden:
            torch.save(content, hidden)
