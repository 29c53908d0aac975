"""overt/recipes/blade/evaluation.py: errors of one depth, and the table of the protocols."""

import math

import pytest

from overt.recipes.blade.evaluation import COLUMNS, depth_row, table


def test_a_depth_has_three_errors() -> None:
    row = depth_row(2.0, 4.0)
    assert row == {"Tz_m": 2.0, "inverse_Tz": 0.25, "relative_Tz": 0.5}
    assert depth_row(0.0, 4.0)["inverse_Tz"] == math.inf
    assert set(depth_row(3.0, 3.0).values()) == {0.0}


def test_the_table_has_the_scores_that_there_are() -> None:
    scores = {"Tz_m": 0.12345, "mpjpe_mm": 81.24, "miou_percent": math.nan, "other": 1.0}
    title, heads, values = table("spec", [{}, {}], scores).splitlines()
    assert title == "spec: 2 people"
    assert heads.split("  ") == [" Tz m", "MPJPE"]
    assert values.split() == ["0.123", "81.2"]
    assert len(heads) == len(values)


@pytest.mark.parametrize("name", [name for name, _, _ in COLUMNS])
def test_every_column_can_stand_alone(name: str) -> None:
    (heading,) = (title for column, title, _ in COLUMNS if column == name)
    assert heading in table("x", [], {name: 1.0})
