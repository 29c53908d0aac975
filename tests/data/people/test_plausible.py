"""overt/data/people/plausible.py: labels in other units are found."""

import re
from pathlib import Path

import numpy as np
import pytest

from overt.data.people.human_data import HumanData
from overt.data.people.plausible import implausible_rows


@pytest.mark.parametrize(
    ("name", "good", "bad", "expected"),
    [
        (
            "smplx/transl",
            [[0.1, -0.2, 40.0]],
            [[100.0, -200.0, 2400.0]],
            "of 2400; expected meters",
        ),
        ("pelvis", [[0.0, 0.0, 8.0]], [[0.0, 0.0, 8000.0]], "of 8000; expected meters"),
        ("smpl/body_pose", [[[6.0, 6.0, 6.0]]], [[[0.0, 90.0, 0.0]]], "of 90; .* in radians"),
        ("smpl/global_orient", [[np.pi, 0, 0]], [[3e38, 3e38, 0.0]], "of 4.243e.38; .* in radians"),
        ("smplx/betas", [[-40.0] * 10], [[0.0] * 9 + [-1e3]], "of 1000; expected shape"),
    ],
)
def test_other_units_are_found(
    name: str, good: list[object], bad: list[object], expected: str
) -> None:
    nothing = np.full_like(np.array(good, np.float32), np.nan)
    values = np.concatenate([np.array([*good, *bad], np.float32), nothing])
    data = HumanData(Path("file.npz"), {"image_path": np.array(["a"] * 3), name: values})
    found = implausible_rows(data, name)
    assert list(found) == [1]
    assert re.match(f"has a {name} {expected}", found[1])
