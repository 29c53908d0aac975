"""benchmarks/scenes.py: a row leaves out what it says; the table compares it with everything."""

import argparse
import json
from pathlib import Path

import pytest
from benchmark_scripts import BENCHMARKS, functions, run

from overt.config import Config, load

FUNCTIONS = functions("scenes.py")
MISSING = FUNCTIONS["MISSING"]


def settings_without(name: str, root: Path) -> Config:
    options = argparse.Namespace(textures=root, test=root, steps=10, overrides=["seed=4"])
    return load(FUNCTIONS["words"](options, name, 0, str(root)))


@pytest.mark.parametrize("name", list(MISSING)[1:])
def test_a_row_leaves_out_one_property_and_nothing_else(name: str, tmp_path: Path) -> None:
    full, less = (settings_without(each, tmp_path) for each in ("everything", name))
    assert (less.training.num_steps, less.seed) == (10, 4)
    assert (full.settings.data.textures is None) is False
    assert (less.settings.data.textures is None) is (name == "photographs")
    before, after = (vars(each.settings.data.procedural) for each in (full, less))
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {setting.split("=")[0] for setting in MISSING[name]}


def test_the_table_shows_what_is_lost(tmp_path: Path) -> None:
    scores = {"average_pts_within_thresh": 0.5, "occlusion_accuracy": 0.9}
    measured = (("everything", 0.40), ("everything", 0.42), ("photographs", 0.30))
    rows = [{"missing": name, "average_jaccard": score, **scores} for name, score in measured]
    rows += [{**rows[0], "average_jaccard": 0.44, "settings": ["data.procedural.solids=0.5"]}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = run("scenes.py", "--show", str(file))
    assert "| nothing | 41.0 | 50.0 | 90.0 | ± 1.4 | 2 |" in printed
    assert "| nothing, data.procedural.solids=0.5 | 44.0 | 50.0 | 90.0 | -3.0 | 1 |" in printed
    assert "| photographs | 30.0 | 50.0 | 90.0 | +11.0 | 1 |" in printed


def test_the_page_shows_the_measured_rows() -> None:
    printed = run("scenes.py", "--show", str(BENCHMARKS / "scenes_rows.jsonl"))
    assert printed.strip() in (BENCHMARKS.parent / "docs" / "tracking.md").read_text()


def test_the_last_evaluation_counts() -> None:
    names = FUNCTIONS["SCORES"]
    rows = [{"train/loss": 1.0}, *({f"evaluation/{name}": n / 4 for name in names} for n in (1, 2))]
    assert FUNCTIONS["last_scores"](rows) == dict.fromkeys(names, 0.5)
