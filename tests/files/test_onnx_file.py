"""overt/files/onnx_file.py: one file that another runtime computes the same from."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from overt.errors import ConfigError
from overt.files.onnx_file import NEEDED, write_onnx


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, points: Tensor, scale: Tensor) -> Tensor:
        output: Tensor = self.layer(points) * scale
        return output


def write(path: Path, module: nn.Module) -> None:
    example = (torch.ones(4, 3), torch.ones(()))
    write_onnx(path, module, example, ("points", "scale"), ("out",), {"points": 0}, "n")


def test_the_file_computes_the_same_for_any_number_of_points(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    module = Scaled()
    write(tmp_path / "a.onnx", module)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]  # weights inside
    session = runtime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 7):
        points = torch.randn(count, 3)
        inputs = {"points": points.numpy(), "scale": np.array(2.0, np.float32)}
        (out,) = session.run(["out"], inputs)
        torch.testing.assert_close(
            torch.from_numpy(out), module(points, torch.tensor(2.0)).detach()
        )


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"onnx and onnxscript must be installed: pip install"):
        write(tmp_path / "a.onnx", Scaled())


def test_the_exporter_leaves_fast_convolutions_switched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object, **named: object) -> None:
        torch.backends.mkldnn.enabled = False  # as torch.export does while it traces
        raise RuntimeError("cannot be traced")

    monkeypatch.setattr(torch.onnx, "export", failing)
    for name in NEEDED:
        pytest.importorskip(name)
    with pytest.raises(RuntimeError, match="cannot be traced"):
        write_onnx(tmp_path / "x.onnx", nn.Identity(), [torch.ones(2)], ["x"], ["y"], {"x": 0}, "n")
    assert torch.backends.mkldnn.enabled
