"""Two checkpoints bit for bit, and two loss curves number for number: the first difference."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overt.errors import OvertError
from overt.run.reader import number_of, read_rows, step_of

if TYPE_CHECKING:
    from torch import Tensor

# Says where and when a run was, not what it computed.
NOT_COMPARED = ("wandb_run_id", "world_size")


class Comparison(NamedTuple):
    """What was compared, and the first difference, or None where every bit is the same."""

    tensors: dict[str, int]  # by file
    difference: str | None


def compare_checkpoints(first: Path, second: Path) -> Comparison:
    """Compare every tensor of two checkpoint folders, then step, position and counters."""
    from overt.checkpoint import plain_values
    from overt.files.weight_files import read_safetensors

    counted: Counter[str] = Counter()
    names = sorted({_name(path, root) for root in (first, second) for path in _files(root)})
    for name in names:
        for root in (first, second):
            if not (root / name).is_file():
                return Comparison(dict(counted), f"{root} has no {name}")
        left, _ = read_safetensors(first / name)
        right, _ = read_safetensors(second / name)
        for key in sorted({*left, *right}):
            difference = _tensor_difference(left.get(key), right.get(key))
            if difference is not None:
                return Comparison(dict(counted), f"{name}: {key}: {difference}")
            counted[name] += 1
    states = [
        plain_values.decode((root / "state.json").read_bytes())["state"] for root in (first, second)
    ]
    for key in sorted({*states[0], *states[1]}):
        values = [json.dumps(state.get(key), sort_keys=True) for state in states]  # NaN equals NaN
        if key not in NOT_COMPARED and values[0] != values[1]:
            return Comparison(dict(counted), f"state.json: {key}: {values[0]} and {values[1]}")
    return Comparison(dict(counted), None)


def _files(root: Path) -> list[Path]:
    return list(root.rglob("*.safetensors"))


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _tensor_difference(before: Tensor | None, after: Tensor | None) -> str | None:
    import torch

    if before is None or after is None:
        return "only one of the two has it"
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{_kind(before)} and {_kind(after)}"
    # Bits, not values: NaN is then equal to itself, and 0 is not -0.
    left, right = (tensor.reshape(-1).view(torch.uint8) for tensor in (before, after))
    if torch.equal(left, right):
        return None
    width = before.element_size()
    differs = (left != right).view(-1, width).any(dim=1)
    first = int(differs.nonzero()[0])
    values = [tensor.reshape(-1)[first].item() for tensor in (before, after)]
    return (
        f"{int(differs.sum())} of {before.numel()} numbers differ, the first at flat position "
        f"{first}: {values[0]!r} and {values[1]!r}"
    )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def read_losses(run: Path) -> dict[int, float]:
    """Return loss by step of a run's metrics.jsonl."""
    log = run / "metrics.jsonl"
    if not log.is_file():
        raise OvertError(f"{run} has no metrics.jsonl: that run ended before its first log line")
    losses: dict[int, float] = {}
    for row in read_rows(log):
        step, loss = step_of(row), number_of(row.get("train/loss"))
        if step is not None and loss is not None:
            losses[step] = loss
    return losses


def loss_difference(before: dict[int, float], after: dict[int, float]) -> str | None:
    """Return the first step whose losses differ."""
    for step in sorted({*before, *after}):
        left, right = before.get(step), after.get(step)
        both_nan = left != left and right != right
        if left != right and not both_nan:
            return f"the loss of step {step} is {left!r} and {right!r}"
    return None


def largest_relative(before: dict[int, float], after: dict[int, float]) -> tuple[float, int]:
    """The largest relative difference between two loss curves over the same steps, and its step."""
    return max(
        (
            (abs(before[step] - after[step]) / max(abs(before[step]), 1e-12), step)
            for step in before
        ),
        default=(0.0, 0),
    )
