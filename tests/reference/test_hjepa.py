"""H-JEPA and I-JEPA against the recorded values of the published implementations."""

from pathlib import Path
from typing import Any

import pytest
from cases import find_cases, load_case
from torch import Tensor

from overt import schedule
from overt.schedule import CosineScheduler, EMAScheduler, HierarchicalScheduler

EXACT = 1e-12


@pytest.mark.parametrize("path", find_cases("hjepa"))
def test_case(path: Path) -> None:
    case, tensors = load_case(path)
    if case["kind"] != "schedulers":
        pytest.skip(f"kind {case['kind']}: the hjepa recipe is not there yet")
    check_schedulers(case, tensors)


def check_schedulers(case: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    built = []
    for name, spec in case["specs"].items():
        scheduler = getattr(schedule, spec["class"])(**spec["kwargs"])
        built.append(scheduler)
        # Beyond the end the originals rise again or fall below; ours keep the final value.
        compare(scheduler, tensors[name][: scheduler.total_steps + 1])
        if f"{name}.epoch" in tensors:
            compare(scheduler.get_epoch_value, tensors[f"{name}.epoch"])

    levels = HierarchicalScheduler(built)
    expected = tensors["hierarchical"]  # (steps, levels)
    assert levels.num_levels == expected.shape[1]
    for level in range(levels.num_levels):
        compare(lambda step, level=level: levels(step)[level], expected[:, level])
        compare(lambda step, level=level: levels.get_level_value(step, level), expected[:, level])

    for name, ijepa in case["ijepa"].items():
        length = {
            "epochs": ijepa["epochs"],
            "steps_per_epoch": ijepa["ipe"],
            "stretch": ijepa["ipe_scale"],
        }
        rate = CosineScheduler(
            ijepa["lr"],
            ijepa["final_lr"],
            warmup_epochs=ijepa["warmup"],
            start_warmup_value=ijepa["start_lr"],
            first_step=1,
            **length,
        )
        decay = CosineScheduler(ijepa["wd"], ijepa["final_wd"], first_step=1, **length)
        momentum = EMAScheduler(*ijepa["ema"], **length)
        compare(rate, tensors[f"{name}.lr"])
        compare(decay, tensors[f"{name}.wd"])
        compare(momentum, tensors[f"{name}.momentum"])


def compare(scheduler: Any, expected: Tensor) -> None:
    found = [scheduler(step) for step in range(len(expected))]
    assert found == pytest.approx(expected.tolist(), abs=EXACT, rel=0)
