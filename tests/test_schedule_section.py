"""overt/schedule_section.py: every section becomes its schedule, or is refused by name."""

import math
from typing import Any

import pytest

from overt.errors import ConfigError
from overt.schedule import CosineScheduler, HierarchicalScheduler
from overt.schedule_section import build_schedule


def build(**section: Any) -> Any:
    return build_schedule(section, base_value=0.1, epochs=3.5, steps_per_epoch=10)


def test_a_section_becomes_its_schedule() -> None:
    built = build(
        _target_="overt.schedule.CosineScheduler",
        final_value=1e-6,
        warmup_epochs=1,
        start_warmup_value=0.0,
        start_warmup_factor=None,
    )
    assert built == CosineScheduler(0.1, 1e-6, 3.5, 10, 1)
    assert build(_target_="overt.schedule.OneCycleScheduler").total_steps == 35


def test_levels_become_a_hierarchical_schedule() -> None:
    level = {"_target_": "overt.schedule.CosineScheduler", "final_value": 0}
    built = build(
        _target_="overt.schedule.HierarchicalScheduler",
        levels=[level, {**level, "base_factor": 0.5, "warmup_epochs": 1}],
    )
    assert built == HierarchicalScheduler(
        [CosineScheduler(0.1, 0, 3.5, 10), CosineScheduler(0.05, 0, 3.5, 10, 1)]
    )


HIERARCHICAL = "overt.schedule.HierarchicalScheduler"
COSINE = {"_target_": "overt.schedule.CosineScheduler", "final_value": 0.0}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, r"schedule\._target_=None is not a schedule"),
        ({"_target_": "os.system"}, r"'os\.system' is not a schedule.*; allowed: overt"),
        ({"_target_": "overt.schedule.CosinScheduler"}, r"mean overt\.schedule\.CosineScheduler\?"),
        ({"_target_": "overt.schedule.CosineScheduler"}, r"schedule\.final_value is missing"),
        (COSINE | {"warmup_epoch": 1}, r"schedule\.warmup_epoch is not .*mean warmup_epochs\?"),
        (COSINE | {"base_value": 1.0}, r"schedule\.base_value follows from optimizer\.lr"),
        (COSINE | {"final_value": "1e-6"}, r"schedule\.final_value='1e-6'; give a number"),
        (COSINE | {"final_value": math.nan}, r"schedule\.final_value=nan is not finite"),
        (COSINE | {"final_value": None}, r"schedule\.final_value=None; give a number"),
        (COSINE | {"final_value": True}, r"schedule\.final_value=True; give a number"),
        (COSINE | {"first_step": 0.5}, r"schedule\.first_step=0\.5; give a whole number"),
        (COSINE | {"warmup_epochs": -1}, r"schedule: warmup_epochs=-1; it must be at least 0"),
        (COSINE | {"warmup_fraction": 2}, r"schedule: warmup_fraction=2; .* and at most 1"),
        (
            COSINE | {"warmup_fraction": 0.1, "warmup_epochs": 1},
            r"warmup_epochs and warmup_fraction: give one",
        ),
        (
            COSINE | {"start_warmup_value": 0.1, "start_warmup_factor": 0.0},
            r"start_warmup_value and start_warmup_factor: give one",
        ),
        (
            {"_target_": "overt.schedule.EMAScheduler", "final_value": 1, "start_warmup_value": 0},
            r"schedule\.start_warmup_value is not an option here.*'~schedule\.start_warmup_value'$",
        ),
        (
            {"_target_": HIERARCHICAL, "levels": [COSINE | {"gamma": 1}]},
            r"schedule\.levels\[0\]\.gamma is not an option here.*; remove it there$",
        ),
        (
            {"_target_": "overt.schedule.OneCycleScheduler", "initial_divisor": 0.5},
            r"initial_divisor=0\.5; it must be at least 1",
        ),
        ({"_target_": HIERARCHICAL}, r"schedule\.levels=None; give a"),
        (
            {"_target_": HIERARCHICAL, "levels": [COSINE], "level": 1},
            r"schedule\.level is not an option here \(did you mean levels\?\)",
        ),
        (
            {"_target_": HIERARCHICAL, "levels": [COSINE, 3]},
            r"schedule\.levels\[1\]=3; give a section",
        ),
        (
            {"_target_": HIERARCHICAL, "levels": [{"_target_": HIERARCHICAL, "levels": [COSINE]}]},
            r"schedule\.levels\[0\]\._target_ has levels",
        ),
    ],
)  # fmt: skip
def test_a_wrong_section_is_refused_by_name(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**section)
