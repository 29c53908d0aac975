"""Where ARM processors are quicker without oneDNN, torch's library for CPUs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

IS_ARM = platform.machine().lower() in ("aarch64", "arm64")


def is_slow(x: Tensor) -> bool:
    """Return whether a tensor is computed on by an ARM processor, as it is and not compiled."""
    if not IS_ARM or x.device.type != "cpu":
        return False
    return not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())


@contextmanager
def without_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
