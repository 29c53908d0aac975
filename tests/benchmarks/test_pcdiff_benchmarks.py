"""The benchmarks of PCDiff run at tiny sizes and print what the documentation quotes."""

from pathlib import Path

from benchmark_scripts import run

from overt.data.skulls.synthetic import write_skulls

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


def test_the_baselines_without_training_are_scored(tmp_path: Path) -> None:
    write_skulls(tmp_path, 2, side=48, points=500)
    printed = run("untrained.py", str(tmp_path), "--cases", "2").splitlines()
    assert printed[2].startswith("| bilateral")
    mean = next(line for line in printed if line.startswith("| mean of all"))
    cells = [cell.strip() for cell in mean.split("|")[2:-1]]
    assert len(cells) == 6
    assert float(cells[3]) > float(cells[0])  # the mirror cannot close the first case
