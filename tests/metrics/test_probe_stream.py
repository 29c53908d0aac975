"""An attentive probe on tokens that are computed as they are needed."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from overt.distributed import init_distributed
from overt.metrics.probe_stream import stream_attentive_accuracy
from overt.metrics.probes import ProbeSettings, attentive_probe_accuracy

SETTINGS = ProbeSettings("adamw", 1e-2, 0.01, epochs=15, batch_size=16)


def tokens_and_labels(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """One of three tokens tells which of two classes it is."""
    tokens = torch.randn(count, 3, 8, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % 2
    tokens[:, 1, 0] += labels * 6.0 - 3
    return tokens, labels


def source(
    tokens: Tensor, labels: Tensor, unreadable: int | None = None
) -> Callable[..., Iterator[tuple[Tensor, Tensor]]]:
    def batches(parts: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            readable = part[part != unreadable]
            yield tokens[readable], labels[readable]

    return batches


def streamed(unreadable: int | None = None) -> float:
    train, test = tokens_and_labels(50, 0), tokens_and_labels(40, 1)
    world = init_distributed("cpu")
    result = stream_attentive_accuracy(
        source(*train), 50, source(*test, unreadable), 40,
        width=8, classes=2, heads=2, world=world, settings=SETTINGS,
    )  # fmt: skip
    assert result["top5"] == 1  # of two classes
    return result["top1"]


def test_it_is_the_probe_on_tokens_in_memory() -> None:
    train, test = tokens_and_labels(50, 0), tokens_and_labels(40, 1)
    kept = attentive_probe_accuracy(*train, *test, heads=2, settings=SETTINGS)
    assert streamed() == pytest.approx(kept["top1"], abs=0.03)
    assert kept["top1"] > 0.8


def test_an_unreadable_sample_is_not_a_wrong_one() -> None:
    everything, less = streamed(), streamed(unreadable=3)
    assert less * 39 == pytest.approx(round(less * 39))
    assert abs(less * 39 - everything * 40) < 1.01


def broken_on_one_rank() -> float:
    """The test samples of one batch, which one rank scores, are NaN."""
    train, (tokens, labels) = tokens_and_labels(50, 0), tokens_and_labels(40, 1)
    tokens[5] = math.nan
    world = init_distributed("cpu")
    result = stream_attentive_accuracy(
        source(*train), 50, source(tokens, labels), 40,
        width=8, classes=2, heads=2, world=world, settings=SETTINGS,
    )  # fmt: skip
    return result["top1"]


def test_broken_tokens_have_no_score_on_any_rank(run_processes: Callable[..., list[float]]) -> None:
    assert math.isnan(broken_on_one_rank())
    assert all(map(math.isnan, run_processes(broken_on_one_rank, 2)))


def test_ranks_share_the_work(run_processes: Callable[..., list[float]]) -> None:
    first, second = run_processes(streamed, 2)
    assert first == second == pytest.approx(streamed(), abs=0.03)
