"""Checkpoints of earlier code resume with today's, and get the losses that code went on to get."""

import json
import shutil
from pathlib import Path

import pytest
from toy_runs import losses_by_step

from overt.config import load
from tests.fixtures.old_checkpoints import make

OLD = Path(make.__file__).parent
NAMES = sorted(path.parent.name for path in OLD.glob("*/losses.json"))


def test_every_family_of_recipes_has_one() -> None:
    assert NAMES == ["blade_depthnet", "cotracker3", "hjepa", "lbm", "pcdiff"] == sorted(make.RUNS)


@pytest.mark.parametrize("name", NAMES)
def test_an_old_checkpoint_resumes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its own configuration, which knows nothing of the settings that came later."""
    recorded = json.loads((OLD / name / "losses.json").read_text())
    expected = {int(step): loss for step, loss in recorded["losses"].items()}
    losses = losses_after_resume(name, tmp_path / "today")
    # Weights and momenta disturbed by 3e-7 change a loss by 3e-6 at most.
    assert losses == pytest.approx(expected, rel=1e-5)
    if recorded["build"] == make.build() and losses != expected:
        # Earlier code left GELU's gradient to oneDNN on ARM, too, which rounds otherwise.
        monkeypatch.setattr("overt.ops.gelu.is_slow", lambda x: False)
        assert losses_after_resume(name, tmp_path / "then") == expected  # every bit


def losses_after_resume(name: str, folder: Path) -> dict[int, float]:
    run = folder / "runs" / name
    checkpoint = run / "checkpoints" / "step_00000002"
    shutil.copytree(OLD / name / checkpoint.name, checkpoint)
    own = [f"output_dir={folder / 'runs'}", f"data.root={folder / 'data'}"]
    make.train(load(own, config_file=str(checkpoint / "config.yaml")))
    return losses_by_step(run)
