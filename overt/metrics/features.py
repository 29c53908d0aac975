"""What frozen features are worth: features of a whole set, each sample once, and k-NN on them.

n samples, D numbers each. Work is dealt out in fixed pieces, so that the number of processes
changes not a bit of the result.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from overt.distributed import World, all_reduce_sum, gather_objects
from overt.errors import DataError
from overt.evaluation import own_batches
from overt.files.atomic import new_file
from overt.ops.exact import exact_products
from overt.progress import each

# Queries compared with the bank at a time; with a fixed number every piece has the same rounding.
_QUERIES = 256

# Within `late_export_errors`, the errors of failed exports; elsewhere None.
_late_errors: ContextVar[list[OSError] | None] = ContextVar("late_errors", default=None)


class Features(NamedTuple):
    """Features of some samples of a set."""

    ids: Tensor  # (n,) int64 places in the set
    values: Tensor  # (n, D), or (n, N, D) for the tokens of each sample
    labels: Tensor  # (n,) int64


def gather_features(
    world: World, count: int, batch_size: int, compute: Callable[[range], Features]
) -> Features:
    """Features of samples 0 to `count` - 1, in this order, on every process.

    `compute` is called with batches of indices, this process's share of them, and may leave out
    samples that cannot be read; `ids` says which are there.
    """
    batches = map(compute, each(own_batches(world, count, batch_size), "encoding batches"))
    parts = [part for part in batches if len(part.ids)]
    local = (
        Features(*(torch.cat(columns) for columns in zip(*parts, strict=True))) if parts else None
    )
    gathered = local if world.world_size == 1 else _gather(local)
    if gathered is None:
        raise DataError(f"none of the {count} samples has features; are there images to read?")
    order = gathered.ids.argsort()
    ids = gathered.ids[order]
    assert (ids.diff() > 0).all(), "a sample was counted twice"
    assert ids[-1] < count, "a sample that was not asked for"
    return Features(ids, gathered.values[order], gathered.labels[order])


def _gather(local: Features | None) -> Features | None:
    """The features of all processes, one behind the other."""
    layouts = gather_objects(local and [(x.shape, x.dtype, x.device.type) for x in local])
    layout = next((layout for layout in layouts if layout is not None), None)
    if layout is None:
        return None
    counts = [0 if layout is None else layout[0][0][0] for layout in layouts]
    columns = []
    for column, (shape, dtype, device) in enumerate(layout):
        # Equal lengths for the exchange: filled up here, cut off there.
        filled = torch.zeros((max(counts), *shape[1:]), dtype=dtype, device=device)
        if local is not None:
            filled[: len(local[column])] = local[column]
        received = [torch.empty_like(filled) for _ in counts]
        dist.all_gather(received, filled)
        columns.append(torch.cat([part[:n] for part, n in zip(received, counts, strict=True)]))
    return Features(*columns)


def knn_accuracy(
    train_features: Tensor,  # (n, D)
    train_labels: Tensor,  # (n,)
    test_features: Tensor,  # (m, D)
    test_labels: Tensor,  # (m,)
    k: int = 20,
    temperature: float = 0.07,
    world: World | None = None,
) -> float:
    """Share (0 to 1) of the test samples whose class their `k` nearest neighbors vote for."""
    return knn_accuracies(
        train_features, train_labels, test_features, test_labels, (k,), temperature, world
    )[k]


def knn_accuracies(
    train_features: Tensor,  # (n, D)
    train_labels: Tensor,  # (n,)
    test_features: Tensor,  # (m, D)
    test_labels: Tensor,  # (m,)
    ks: Sequence[int],
    temperature: float = 0.07,
    world: World | None = None,
) -> dict[int, float]:
    """`knn_accuracy` for several numbers of neighbors at the price of the largest.

    Neighbors are the nearest by cosine and vote with exp(cosine / temperature). With a `world` its
    processes, all of which must call, share the test samples and get the same answer. Features with
    NaN or Inf score NaN.
    """
    if not 1 <= min(ks) <= max(ks) <= len(train_features):
        raise DataError(
            f"k-NN with {', '.join(map(str, ks))} neighbors among {len(train_features)} training "
            f"features; use 1 to {len(train_features)}. Lower k, or take more samples."
        )
    if not (train_features.isfinite().all() and test_features.isfinite().all()):
        return {k: float("nan") for k in ks}
    bank = F.normalize(train_features.float(), dim=1)
    labels = train_labels.to(bank.device)
    correct = torch.zeros(len(ks), dtype=torch.int64, device=bank.device)
    ranks = world or World(0, 1, 0, bank.device)
    with exact_products(bank.device):
        for indices in own_batches(ranks, len(test_features), _QUERIES):
            chunk = slice(indices.start, indices.stop)
            queries = F.normalize(test_features[chunk].to(bank.device).float(), dim=1)
            cosine, nearest = (queries @ bank.T).topk(max(ks), dim=1)  # (m, k), nearest first
            votes = ((cosine - 1) / temperature).exp()
            truth = test_labels[chunk].to(bank.device)
            for position, k in enumerate(ks):
                predicted = vote(labels[nearest[:, :k]], votes[:, :k])
                correct[position] += (predicted == truth).sum()
    totals: list[int] = (all_reduce_sum(correct) if world else correct).tolist()
    return {k: total / len(test_features) for k, total in zip(ks, totals, strict=True)}


def vote(labels: Tensor, votes: Tensor) -> Tensor:
    """The label with the most votes (m,), of labels and votes (m, k); of equals the nearest's."""
    # Each neighbor adds up those that agree with it: no atomic sums, so always the same bits.
    agree = (labels[:, :, None] == labels[:, None, :]).to(votes.dtype)  # (m, k, k)
    sums = (agree @ votes[:, :, None])[..., 0]  # (m, k)
    return labels.gather(1, sums.argmax(dim=1, keepdim=True))[:, 0]


def export_features(
    path: Path | str, features: Tensor, labels: Tensor, names: Sequence[str]
) -> None:
    """Write features (n, ...), labels (n,) and names as one safetensors file, whole or not at all.

    The names are a JSON list in the bytes of the tensor `names`. Within `late_export_errors` an
    OSError is raised later.
    """
    path = Path(path)
    assert len(features) == len(labels) == len(names), "one label and one name for each feature"
    text = json.dumps(list(names)).encode()
    tensors = {
        "features": features.detach().cpu().contiguous(),
        "labels": labels.detach().cpu().contiguous(),
        "names": torch.frombuffer(bytearray(text), dtype=torch.uint8),
    }
    try:
        with new_file(path) as hidden, _os_errors(path):
            save_file(tensors, hidden, metadata={"names": "a JSON list, as UTF-8 bytes"})
    except OSError as error:
        if (late := _late_errors.get()) is None:
            raise
        late.append(error)


@contextmanager
def late_export_errors() -> Iterator[None]:
    """Raise the first error of an export when the block ends, so that its scores can be kept."""
    errors: list[OSError] = []
    token = _late_errors.set(errors)
    try:
        yield
    finally:
        _late_errors.reset(token)
    if errors:
        raise errors[0]


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """Raise an OSError of `path` where the message of a SafetensorError has the error number."""
    try:
        yield
    except SafetensorError as error:
        if (number := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error


def load_features(path: Path | str) -> tuple[Tensor, Tensor, list[str]]:
    """Features, labels and names as `export_features` wrote them."""
    try:
        with safe_open(path, framework="pt") as file:
            features, labels, text = map(file.get_tensor, ("features", "labels", "names"))
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: not a readable file of features ({error}); expected a safetensors file with "
            "features, labels and names."
        ) from error
    return features, labels, json.loads(text.numpy().tobytes())
