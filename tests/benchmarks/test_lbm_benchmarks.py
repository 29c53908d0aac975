"""The benchmarks of LBM run at tiny sizes and print what the documentation quotes."""

from typing import Any

import pytest
import torch
from benchmark_scripts import run


def test_the_step_of_a_small_lbm_is_measured() -> None:
    small = ["training.batch_size=1", "data.frames=2", "data.points=4", "data.crop_size=[32,32]"]
    words = ["model.input_size=[32,32]", "--device", "cpu", "--steps", "1", "--rows", "3"]
    printed = run("step.py", "lbm_tiny", *small, *words, "--no-floor")
    assert "s/step" in printed


def test_online_frames_are_measured() -> None:
    words = ["--tiny", "--device", "cpu", "--points", "3", "--frames", "2", "--warm-up", "1"]
    printed = run("online.py", "frames", *words)
    assert "3 points, 64x64" in printed
    assert "frames/s; first frame" in printed
    assert "compiled" not in printed


def test_online_frames_are_compiled_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def record(function: Any, **_: object) -> Any:  # compiling takes minutes on a CPU
        names.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", record)
    words = ["--tiny", "--device", "cpu", "--points", "3", "--frames", "2", "--warm-up", "1"]
    printed = run("online.py", "frames", *words, "--compile")
    assert "torch.float32, compiled: " in printed
    assert names == ["_encode", "_follow"]


def test_compiling_is_for_online_frames(capsys: pytest.CaptureFixture[str]) -> None:
    run("online.py", "attention", "--tiny", "--device", "cpu", "--compile", exit_code=2)
    assert "--compile is for frames, not for attention" in capsys.readouterr().err


def test_the_attention_is_measured() -> None:
    words = ["--tiny", "--device", "cpu", "--frames", "2", "--warm-up", "1"]
    printed = run("online.py", "attention", *words)
    assert "forward and backward" in printed


@pytest.mark.parametrize(
    ("runtime", "forms"),
    [
        ("torch", ["any", "cpu"]),
        pytest.param("onnx", ["cpu"], marks=pytest.mark.long),  # exports take most of a minute
    ],
)
def test_the_exported_step_is_measured(runtime: str, forms: list[str]) -> None:
    words = ["--tiny", "--size", "32", "32", "--points", "3", "--frames", "2", "--warm-up", "1"]
    printed = run("online.py", "onnx", "--runtime", runtime, *words, "--forms", *forms)
    for form in forms:
        assert f"3 points, step for {form}" in printed
    assert "floor" in printed
    assert ("MatMul" in printed) == (runtime == "onnx")


def test_packed_sequences_are_compared_with_folders() -> None:
    words = ["--count", "2", "--frames", "3", "--size", "32", "40", "--points", "8"]
    printed = run("loader.py", "sequences", *words, "--rounds", "1")
    assert "folder of PNGs" in printed
    assert "packed, raw" in printed
