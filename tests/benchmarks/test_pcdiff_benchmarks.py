"""The benchmarks of PCDiff run at tiny sizes and print what the documentation quotes."""

from benchmark_scripts import run

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
