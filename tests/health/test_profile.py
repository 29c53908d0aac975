"""A trace and a table of the steps that the configuration names, and of no others."""

import json
from pathlib import Path

import pytest
import torch
from toy_runs import same_bits, toy_config, train_toy, weights

from overt.distributed import World
from overt.errors import ConfigError
from overt.health.profile import NOTHING, StepProfile

FEW = ("training.num_steps=6", "exp_name=run", "training.num_workers=0")


def steps_in(trace: Path) -> set[str]:
    """Names of the marked steps in a Chrome trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    return {event["name"] for event in events if str(event.get("name", "")).startswith("step ")}


def test_writes_the_named_steps_and_changes_no_bit_of_the_result(tmp_path: Path) -> None:
    train_toy(tmp_path / "a", *FEW)
    train_toy(tmp_path / "b", *FEW, "training.profile_steps=[3,4]")
    folder = tmp_path / "b" / "run" / "profile"
    assert steps_in(folder / "steps_3_4_rank0.json") == {"step 3", "step 4"}
    table = (folder / "steps_3_4_rank0.txt").read_text()
    assert table.startswith("2 steps; the host waits for the device ")
    assert "aten::addmm" in table or "aten::linear" in table
    assert not (tmp_path / "a" / "run" / "profile").exists()
    assert same_bits(weights(tmp_path / "a" / "run", 6), weights(tmp_path / "b" / "run", 6))


def test_a_run_that_ends_within_the_steps_writes_what_it_has(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.profile_steps=[5,99]")
    profile = StepProfile(
        config.training, tmp_path / "profile", World(0, 1, 0, torch.device("cpu"))
    )
    for step in (5, 6):
        with profile.around(step):
            torch.ones(3).sum()
    profile.close()
    profile.close()  # nothing is left to write
    assert steps_in(tmp_path / "profile/steps_5_6_rank0.json") == {"step 5", "step 6"}


def test_a_profile_that_cannot_be_written_stops_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").touch()  # no folder can be made here
    train_toy(tmp_path, *FEW, "training.profile_steps=[3,4]")
    assert weights(tmp_path / "run", 6)
    assert "the profile could not be written to" in caplog.text


def test_other_steps_are_not_touched(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.profile_steps=[3,4]")
    profile = StepProfile(
        config.training, tmp_path / "profile", World(0, 1, 0, torch.device("cpu"))
    )
    assert profile.around(2) is NOTHING
    assert profile.around(5) is NOTHING
    assert profile.around(3) is not NOTHING


def test_host_waits_are_counted_per_step(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.profile_steps=[1,2]")
    profile = StepProfile(
        config.training, tmp_path / "profile", World(0, 1, 0, torch.device("cpu"))
    )
    for step in (1, 2):
        with profile.around(step):
            for _ in range(3):
                torch.ones(()).item()
    table = (tmp_path / "profile" / "steps_1_2_rank0.txt").read_text()
    assert "waits for the device 3 times per step: 3 x aten::_local_scalar_dense" in table


@pytest.mark.parametrize("steps", ["[4,3]", "[0,2]", "[1]", "[1,2,3]"])
def test_impossible_steps_are_refused(tmp_path: Path, steps: str) -> None:
    with pytest.raises(ConfigError, match="first and the last step"):
        toy_config(tmp_path, f"training.profile_steps={steps}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_out_of_memory_leaves_a_snapshot(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.memory_snapshot=true")
    StepProfile(config.training, tmp_path / "profile", World(0, 1, 0, torch.device("cuda", 0)))
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2**50, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert (tmp_path / "profile" / "out_of_memory_rank0.pickle").stat().st_size > 0
