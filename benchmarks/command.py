"""Shared by the command lines of the benchmark scripts: bad input ends in one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from overt.errors import FAILED_EXIT_CODE, ConfigError, OvertError, exit_code_of, file_problem


def positive(text: str) -> int:
    """Read an integer of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def writable_file(text: str) -> Path:
    """Read the path of a file whose folder exists, for argparse."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in an existing folder")
    return path


def need_device(device: str) -> None:
    """Refuse a CUDA device where torch sees none."""
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}, but torch sees no CUDA device; use --device cpu")


def guarded(main: Callable[[], int]) -> int:
    """Run a script; print an error that the user can fix without a traceback."""
    try:
        return main()
    except OvertError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code_of(error)
    except OSError as error:
        if (problem := file_problem(error)) is None:
            raise
        print(problem, file=sys.stderr)
        return FAILED_EXIT_CODE
