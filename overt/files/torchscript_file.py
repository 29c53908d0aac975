"""A module as a TorchScript file, for C++ and older torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn


def write_torchscript(path: Path, module: nn.Module, example: Sequence[Tensor]) -> None:
    """Trace `module` on `example` and write it as one file, weights included."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shapes are read while tracing, which is meant
        traced = torch.jit.trace(module.eval(), tuple(example))  # type: ignore[no-untyped-call]
    # By its own name torch refuses a hidden file, such as one that is not complete yet.
    with path.open("wb") as file:
        torch.jit.save(traced, file)
