"""Real digits: settings that learn, a control that does not, and a setting that collapses.

Minutes on two free cores; tests/recipes/hjepa/test_collapse.py shows the alarm in seconds.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest
from toy_runs import HERE, read_rows

EXAMPLES = HERE.parent / "examples"
pytestmark = pytest.mark.long
QUIET = ["training.device=cpu", "training.num_workers=0", "logging.use_tensorboard=false"]
SHORT = [
    "training.batch_size=32", "training.num_steps=70", "evaluation.collapse.every_steps=10",
    "logging.every_steps=10", "evaluation.max_samples=64", "schedule.warmup_fraction=0.1",
]  # fmt: skip


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sklearn", reason="the digits are inside scikit-learn")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("jepa.digits")


def words(folder: Path, *names: str) -> list[str]:
    only = [word for name in names for word in ("--only", name)]
    return [*only, "--data", str(folder / "data"), f"output_dir={folder / 'runs'}", *QUIET]


def test_the_collapsing_setting_raises_the_alarm_and_is_stopped(
    digits: Any, tmp_path: Path
) -> None:
    name = "digits_collapse"
    found = digits.main([*words(tmp_path, name), *SHORT, "optimizer.lr=3e-3"])[name]
    assert found.alarm is not None
    assert "Seen 3 times in a row" in found.alarm
    assert "min_std" in found.alarm
    rows = [row for row in read_rows(tmp_path / "runs" / name) if "train/loss" in row]
    # The loss is at its best, and the rank, which knows no scale, sees nothing.
    assert rows[-1]["train/loss"] < 0.3 * rows[0]["train/loss"]
    assert rows[-1]["train/context_token_rank"] > 0.7 * rows[0]["train/context_token_rank"]


def test_the_learning_setting_raises_none(digits: Any, tmp_path: Path) -> None:
    name = "digits_learn"
    found = digits.main([*words(tmp_path, name), *SHORT, "evaluation.collapse.stop_after=1"])[name]
    assert found.alarm is None
    assert found.std[1] > 0.5 * found.std[0]


@pytest.mark.timeout(3600)
def test_features_of_digits_get_better_and_those_of_the_control_do_not(
    digits: Any, tmp_path: Path
) -> None:
    found = digits.main(words(tmp_path))
    learned, control = found["digits_learn"], found["digits_control"]
    assert learned.knn[0] == control.knn[0]  # the same untrained encoder
    assert learned.knn[1] > learned.knn[0] + 0.05
    assert learned.knn[1] > control.knn[1] + 0.03
    assert learned.rank[1] > learned.rank[0] > control.rank[1]
    assert learned.alarm is None
    assert found["digits_collapse"].alarm is not None
    assert control.loss < learned.loss  # which is why the loss is no judge
