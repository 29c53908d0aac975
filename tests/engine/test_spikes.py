"""overt/engine/spikes.py: a loss spike is reported or skipped, alike on all ranks."""

import itertools
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import losses_by_step, same_bits, toy_config, weights

from overt.checkpoint.reading import read_part
from overt.engine.spikes import SpikeWatch, robust_limit
from overt.errors import ConfigError, NonFiniteError

CPU = torch.device("cpu")
RUNS = Callable[..., list[Any]]
SETTINGS = [
    "training.num_steps=24",
    "training.loss_spike_window=8",
    "training.loss_spike_deviations=50",
    "logging.every_steps=4",
    "checkpoint.every_steps=1",
    "checkpoint.keep_last_n=30",
]


def watch(tmp_path: Path, *overrides: str) -> SpikeWatch:
    return SpikeWatch(toy_config(tmp_path, *overrides).training, CPU)


def test_the_limit_is_robust_and_moves_with_the_losses() -> None:
    draw = random.Random(0)
    losses = [draw.gauss(2.0, 0.1) for _ in range(200)]
    limit = robust_limit(losses, 10.0)
    assert limit == pytest.approx(3.0, rel=0.1)
    assert robust_limit([*losses[20:], *[1e6] * 20], 10.0) == pytest.approx(limit, rel=0.1)
    shifted = robust_limit([loss * 3 + 5 for loss in losses], 10.0)
    assert shifted == pytest.approx(limit * 3 + 5)
    assert robust_limit([1.0] * 9, 10.0) == pytest.approx(1.01)


def test_the_window_holds_each_of_the_last_losses_once(tmp_path: Path) -> None:
    spikes = watch(tmp_path, "training.loss_spike_window=8")
    for first in range(1, 13, 3):
        spikes.add([float(first), math.nan, float(first + 1), float(first + 2)], first + 3)
    assert list(spikes.losses) == [float(loss) for loss in range(5, 13)]
    other = watch(tmp_path, "training.loss_spike_window=8")
    other.load_state_dict(list(spikes.losses))
    assert (list(other.losses), other.limit) == (list(spikes.losses), spikes.limit)


def test_nothing_is_a_spike_until_enough_is_known(tmp_path: Path) -> None:
    spikes = watch(tmp_path, "training.loss_spike_window=40")
    assert spikes.add([1.0, 500.0, 1.1] + [1.0] * 6, 8) == []
    assert spikes.limit == math.inf
    assert spikes.add([1.0, math.nan], 10) == []
    assert spikes.limit < 2.0
    found = spikes.add([1.0, math.nan, 7.0, 1.0], 14)
    assert [(spike.step, spike.loss) for spike in found] == [(13, 7.0)]
    again = watch(tmp_path, "training.loss_spike_window=40")
    again.load_state_dict(list(spikes.losses))
    assert again.limit == spikes.limit
    off = watch(tmp_path, "training.loss_spike=ignore", "training.loss_spike_window=4")
    assert off.add([1.0] * 8 + [1e9], 8) == []


def train_with_spike(
    folder: Path, *overrides: str, at: tuple[int, ...], ranks: tuple[int, ...] = (0, 1)
) -> tuple[int, str]:
    """Train with a loss that is huge at some steps; how many were skipped, and an error."""
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    world = init_distributed("cpu")
    config = toy_config(folder, *SETTINGS, *overrides)
    trainer = Trainer(config, build_recipe(config), world)
    inner = trainer.recipe.loss

    def loss(*arguments: Any) -> Any:
        huge = trainer.state.step in at and world.rank in ranks
        return inner(*arguments).scaled(1e4 if huge else 1.0)

    trainer.recipe.loss = loss
    try:
        trainer.train()
    except NonFiniteError as error:
        return trainer.state.skipped, str(error)
    finally:
        del trainer.recipe.loss  # else the trainer outlives the process group
    return trainer.state.skipped, ""


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = map(json.loads, (folder / "toy/events.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def skipped_samples(run: Path, rank: int) -> list[tuple[int, list[dict[str, int]]]]:
    rows = map(json.loads, (run / f"skipped/rank_{rank}.jsonl").read_text().splitlines())
    return [(row["step"], row["samples"]) for row in rows]


def test_by_default_a_spike_is_reported_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_with_spike(tmp_path / "ignored", "training.loss_spike=ignore", at=(14,))[0] == 0
    assert "is a spike" not in capsys.readouterr().out
    assert train_with_spike(tmp_path / "said", at=(14,)) == (0, "")
    assert "is a spike, the largest at step 14: " in capsys.readouterr().out
    assert [row["step"] for row in events(tmp_path / "said", "loss_spike")] == [14]
    one, other = (tmp_path / name / "toy" for name in ("ignored", "said"))
    assert same_bits(weights(one, 24), weights(other, 24))


@pytest.mark.parametrize("size", [1, 2])
def test_a_skipped_spike_leaves_the_weights_alone_on_all_processes(
    size: int, run_processes: RUNS, tmp_path: Path
) -> None:
    """The spike is on the last process only; the others skip as well."""
    skip = "training.loss_spike=skip"
    answers = run_processes(train_with_spike, size, tmp_path, skip, at=(13, 16), ranks=(size - 1,))
    assert answers == [(2, "")] * size
    run = tmp_path / "toy"
    for step in (13, 16):
        assert same_bits(weights(run, step), weights(run, step + 1))
        assert not same_bits(weights(run, step - 1), weights(run, step))
    assert [row["spike"] for row in events(tmp_path, "skipped_step")] == [True, True]
    assert len((run / f"skipped/rank_{size - 1}.jsonl").read_text().splitlines()) == 2


@pytest.mark.long
def test_sharded_training_skips_the_steps_that_ddp_skips(
    run_processes: RUNS, tmp_path: Path
) -> None:
    """A spike on the last process only; no share moves, and all end where DDP ends."""
    parts = ("model", "ema", "optimizer")
    settings = ["training.loss_spike=skip", "training.ema_momentum=0.9", "model.width=6"]
    for strategy in ("ddp", "fsdp"):
        words = [*settings, f"training.strategy={strategy}"]
        folder = tmp_path / strategy
        answers = run_processes(train_with_spike, 2, folder, *words, at=(13, 16), ranks=(1,))
        assert answers == [(2, "")] * 2
        spikes = [(row["step"], row["spike"]) for row in events(folder, "skipped_step")]
        assert spikes == [(13, True), (16, True)]

    def tensors(strategy: str, step: int, part: str) -> dict[str, torch.Tensor]:
        return read_part(tmp_path / strategy / f"toy/checkpoints/step_{step:08d}", part)

    whole, shares = tmp_path / "ddp/toy", tmp_path / "fsdp/toy"
    for rank in range(2):
        assert skipped_samples(shares, rank) == skipped_samples(whole, rank)
        assert [step for step, _ in skipped_samples(shares, rank)] == [13, 16]
    assert (shares / "checkpoints/step_00000024/rank_00001.safetensors").exists()
    for step, part in itertools.product((13, 16), parts):
        assert same_bits(tensors("fsdp", step, part), tensors("fsdp", step + 1, part))
        assert not same_bits(tensors("fsdp", step - 1, part), tensors("fsdp", step, part))
    assert losses_by_step(shares) == pytest.approx(losses_by_step(whole), rel=1e-6, nan_ok=True)
    for part in parts:
        one, other = (tensors(strategy, 24, part) for strategy in ("ddp", "fsdp"))
        assert one.keys() == other.keys()
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=1e-4, atol=1e-7, msg=key)


def test_a_resumed_run_skips_what_the_uninterrupted_one_skips(tmp_path: Path) -> None:
    """Cut between two log lines: window and losses since the last line are in the checkpoint."""
    skip = "training.loss_spike=skip"
    assert train_with_spike(tmp_path / "whole", skip, at=(14,))[0] == 1
    shutil.copytree(tmp_path / "whole", tmp_path / "cut", symlinks=True)
    for path in (tmp_path / "cut/toy/checkpoints").glob("step_*"):
        if int(path.name.removeprefix("step_")) > 10:
            shutil.rmtree(path)
    assert train_with_spike(tmp_path / "cut", skip, at=(14,))[0] == 1
    one, other = (tmp_path / name / "toy" for name in ("whole", "cut"))
    assert same_bits(weights(one, 24), weights(other, 24))
    assert losses_by_step(one) == losses_by_step(other)


def test_a_loss_that_stays_high_stops_the_run(tmp_path: Path) -> None:
    skipped, message = train_with_spike(
        tmp_path,
        "training.loss_spike=skip",
        "training.max_skipped_in_a_row=3",
        "training.nonfinite=stop",  # says nothing about spikes
        at=tuple(range(14, 24)),
    )
    assert skipped == 3
    assert "its loss is a spike" in message


def test_skipping_does_not_go_with_a_loss_scaler(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use bf16, or"):
        toy_config(tmp_path, "training.loss_spike=skip", "training.precision=fp16")
    with pytest.raises(ConfigError, match="use one of ignore, report, skip"):
        toy_config(tmp_path, "training.loss_spike=stop")
