"""overt/engine/interval.py: sums of the steps between two log lines."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from overt.distributed import World, get_rank, init_distributed
from overt.engine.interval import Interval
from overt.errors import ConfigError
from overt.recipe import StepOutput

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU)


def output(fit: float, size: float) -> StepOutput:
    return StepOutput(
        {"fit": torch.tensor(fit), "reg": torch.tensor(1.0)}, {"s": torch.tensor(size)}
    )


def test_an_interval_adds_micro_batches_and_leaves_out_skipped_steps() -> None:
    interval = Interval(CPU)
    yes, no = torch.tensor(1.0), torch.tensor(0.0)
    interval.add([output(2.0, 5.0), output(3.0, 6.0)], yes, torch.tensor(0.5))
    interval.add([output(float("nan"), 1.0)], no, torch.tensor(float("nan")))
    interval.add([output(1.0, 1.0)], yes, torch.tensor(1.5))
    sums, steps, losses, timings = interval.totals([3.0, 4.0])
    assert steps == 2
    assert sums == {"loss": 9.0, "fit": 6.0, "reg": 3.0, "s": 12.0, "grad_norm": 2.0}
    assert losses == pytest.approx([7.0, float("nan"), 2.0], nan_ok=True)
    assert timings == [[3.0, 4.0]]
    other = Interval(CPU)
    other.load_state_dict({"sums": sums, "steps": steps, "losses": losses[:1]}, ALONE)
    assert other.totals() == (sums, steps, losses[:1], [[]])
    interval.reset()
    assert interval.totals() == (dict.fromkeys(sums, 0.0), 0.0, [], [[]])


def test_a_long_interval_is_read_in_parts_with_the_same_sums() -> None:
    whole, parts = Interval(CPU), Interval(CPU)
    parts.LONGEST = 3  # type: ignore[misc]
    for step in range(8):
        for interval in (whole, parts):
            interval.add([output(0.1 * step, 1 / 3)], torch.ones(()), torch.tensor(0.7))
    assert len(parts.rows) == 2
    assert whole.totals() == parts.totals()


def test_only_the_main_process_carries_restored_totals() -> None:
    interval = Interval(CPU)
    interval.load_state_dict(
        {"sums": {"loss": 3.0}, "steps": 2.0, "losses": [1.0, 2.0]}, World(1, 2, 1, CPU)
    )
    assert interval.totals() == ({"loss": 0.0}, 2.0, [0.0, 0.0], [[]])


def test_an_interval_of_a_version_that_measured_less_begins_anew() -> None:
    interval = Interval(CPU)
    interval.load_state_dict(
        {"sums": {"loss": 3.0, "grad_norm": 1.0}, "steps": 2.0, "losses": [1.0, 2.0]}, ALONE
    )
    interval.add([output(2.0, 5.0)], torch.ones(()), torch.tensor(0.5))
    sums, steps, losses, _ = interval.totals()
    assert (steps, losses) == (1, [pytest.approx(sums["loss"])])
    assert sums["grad_norm"] == 0.5
    with pytest.raises(ConfigError, match="Return reg, s always, with 0 where nothing counts"):
        interval.add([StepOutput({"fit": torch.ones(())})], torch.ones(()), torch.ones(()))


def with_more(metrics: dict[str, float]) -> StepOutput:
    whole = output(1.0, 2.0)
    return StepOutput(
        whole.losses, whole.metrics | {k: torch.tensor(v) for k, v in metrics.items()}
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_metric_of_some_micro_batches_is_named(first: bool) -> None:
    """Its value was taken for a loss of the next micro-batch."""
    pair = [output(1.0, 2.0), with_more({"extra": 1000.0})]
    one = torch.ones(())
    with pytest.raises(ConfigError, match="Return extra always, with 0 where nothing counts"):
        Interval(CPU).add(pair if first else pair[::-1], one, one)
    interval = Interval(CPU)
    interval.add(pair[:1], one, one)
    with pytest.raises(ConfigError, match="Return extra always"):
        interval.add(pair[1:], one, one)


def test_numbers_are_added_by_their_names() -> None:
    interval, one = Interval(CPU), torch.ones(())
    turned = StepOutput({"reg": torch.tensor(1.0), "fit": torch.tensor(5.0)}, {"s": one})
    interval.add([output(2.0, 5.0), turned], one, one)
    assert interval.totals().sums == {
        "loss": 9.0, "fit": 7.0, "reg": 2.0, "s": 6.0, "grad_norm": 1.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "metrics", "reason"),
    [
        (["loss", "reg"], [], "a loss loss, but train/loss is the sum of all losses"),
        (["fit"], ["loss"], "a metric loss, but train/loss is the sum of all losses"),
        (["fit", "reg"], ["reg"], "a loss reg, but it is both a loss and a metric"),
        (["fit"], ["lr"], "a metric lr, but the engine logs a value of this name"),
        (["grad_norm"], [], "a loss grad_norm, but the engine logs a value of this name"),
    ],
)
def test_names_under_which_two_values_would_be_logged_are_refused(
    losses: list[str], metrics: list[str], reason: str
) -> None:
    """One replaced the other: train/loss was a single term, or train/reg the metric."""
    one = torch.ones(())
    with pytest.raises(ConfigError, match=f"{reason}; give it another name"):
        Interval(CPU).add(
            [StepOutput(dict.fromkeys(losses, one), dict.fromkeys(metrics, one))], one, one
        )


def test_an_only_loss_may_be_called_loss_and_survives_a_resume() -> None:
    one = torch.ones(())
    first, second = Interval(CPU), Interval(CPU)
    first.add([StepOutput({"loss": 2 * one})], one, one)
    second.load_state_dict(first.state_dict(), ALONE)
    second.add([StepOutput({"loss": 4 * one})], one, one)
    assert second.totals().means() == {"loss": 3.0, "grad_norm": 1.0}


def totals_of_unlike_ranks() -> str | None:
    init_distributed("cpu")
    interval, one = Interval(CPU), torch.ones(())
    interval.add([with_more({"extra": 1.0} if get_rank() else {})], one, one)
    try:
        interval.totals()
    except ConfigError as error:
        return str(error)
    return None


def test_ranks_with_other_metrics_are_refused(run_processes: Callable[..., Any]) -> None:
    """On every rank, with the reason, before a reduction of unlike sizes can crash."""
    first, second = run_processes(totals_of_unlike_ranks, 2)
    assert first is not None
    assert first == second
    assert "fit, reg, s, extra on rank 1" in first
    assert "Return extra always, with 0 where nothing counts" in first
