"""The benchmarks of PCDiff run at tiny sizes and print what the documentation quotes."""

from pathlib import Path

import numpy as np
import pytest
from benchmark_scripts import run
from small_recipes import SMALL_REFINE

from overt.data.skulls.synthetic import write_skulls
from overt.recipes.pcdiff.data import HeldOutCases

SMALL = [
    "model.width_multiplier=0.5",
    "model.resolution_multiplier=0.5",
    "data.num_points=160",
    "data.num_implant_points=32",
]


def test_a_training_step_is_measured() -> None:
    words = ["training.global_batch_size=1", "--device", "cpu", "--steps", "1", "--rows", "3"]
    printed = run("step.py", "pcdiff_tiny", *SMALL, *words, "--no-floor")
    assert "s/step" in printed
    assert "samples/s" in printed


def test_a_reverse_step_is_measured() -> None:
    printed = run("sampling.py", "pcdiff_tiny", *SMALL, "--device", "cpu", "--steps", "1")
    assert "ms per reverse step" in printed
    assert "DDIM-50" in printed


def test_sampled_implants_are_scored_with_a_refinement_and_its_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("exp_name=refine", "training.num_steps=1", "checkpoint.every_steps=1")
    folder = SMALL_REFINE.train(tmp_path, *words, "checkpoint.metric_name=null")
    settings = SMALL_REFINE.config(tmp_path).settings
    cases = HeldOutCases(settings.data, settings.evaluation)
    case = cases.case(0)
    np.savez(
        tmp_path / "points.npz",
        implants=case.implant[None, None].repeat(1, 2, 1, 1).numpy(),
        names=np.array([case.item.name]),
        shifts=case.cloud.shift[None],
        scales=case.cloud.scale[None],
    )
    model = ["--checkpoint", str(folder / "checkpoints" / "latest"), "--root", settings.data.root]
    printed = run("refined.py", str(tmp_path / "points.npz"), *model).splitlines()
    assert printed[0].startswith("1 cases")
    assert case.item.name in printed[1]
    scores = printed[1].split()
    assert float(scores[scores.index("ball") + 1]) > 0.3  # the true points, as a solid
    assert {"ball", "blind", "refined"} <= set(scores)
    np.savez(tmp_path / "other.npz", tracks=np.zeros(3))
    np.save(tmp_path / "cloud.npy", np.zeros((9, 3)))
    for name in ("absent.npz", "other.npz", "cloud.npy"):
        run("refined.py", str(tmp_path / name), *model, exit_code=1)
        assert f"{name} has no sampled implants" in capsys.readouterr().err


def test_the_baselines_without_training_are_scored(tmp_path: Path) -> None:
    write_skulls(tmp_path, 2, side=48, points=500)
    printed = run("untrained.py", str(tmp_path), "--cases", "2").splitlines()
    assert printed[2].startswith("| bilateral")
    mean = next(line for line in printed if line.startswith("| mean of all"))
    cells = [cell.strip() for cell in mean.split("|")[2:-1]]
    assert len(cells) == 6
    assert float(cells[3]) > float(cells[0])  # the mirror cannot close the first case
