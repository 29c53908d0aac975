"""overt/recipes/lbm/cpu_int8.py: the encoder with 8-bit convolutions."""

import importlib.util
from pathlib import Path

import pytest
import torch
from small_recipes import small_lbm
from torch import nn

from overt.files.onnx_file import write_onnx
from overt.recipes.lbm.cpu_encoder import CpuEncoder
from overt.recipes.lbm.cpu_int8 import Convolution, Int8Stages, Quantize, calibrate

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="needs the extra: pip install 'overt[onnx]'")


@torch.no_grad()
def test_features_differ_by_rounding_only() -> None:
    torch.manual_seed(0)
    backbone = small_lbm(input_size=(96, 64)).backbone.eval()
    pictures = torch.randint(256, (3, 3, 96, 64)).float()
    exact = CpuEncoder(backbone)
    encoder = CpuEncoder(backbone, Int8Stages)
    wanted = exact(pictures[:1])
    # While ranges are measured, only weights are rounded.
    calibrate(encoder, pictures)
    error = (encoder(pictures[:1]) - wanted).norm() / (wanted - exact.positions).norm()
    assert 1e-4 < error < 0.1


@torch.no_grad()
def test_activations_are_rounded_to_what_was_measured() -> None:
    quantize = Quantize()
    calibrated = nn.Sequential(quantize)
    calibrate(calibrated, torch.tensor([[-1.0, 0.3], [4.1, 2.0]]))
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 9.0])
    levels = torch.tensor([-1.0, -1.0, 0.0, 1.0, 4.1])
    torch.testing.assert_close(quantize(x), levels, atol=5.1 / 255, rtol=0)
    assert quantize(x)[2] == 0  # padding stays exact


@torch.no_grad()
def test_weights_have_a_scale_per_channel() -> None:
    convolution = nn.Conv2d(2, 2, 1)
    convolution.weight.copy_(torch.tensor([[0.001, 0.0005], [10.0, 5.0]]).view(2, 2, 1, 1))
    x = torch.ones(1, 2, 1, 1)
    found = Convolution(convolution)(x)
    torch.testing.assert_close(found, convolution(x), rtol=0.01, atol=1e-5)


@needs_onnx
@pytest.mark.long
@torch.no_grad()
def test_onnx_runtime_makes_integer_convolutions(tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    torch.manual_seed(0)
    pictures = torch.randint(256, (3, 3, 64, 64)).float()
    encoder = CpuEncoder(small_lbm(input_size=(64, 64)).backbone.eval(), Int8Stages)
    calibrate(encoder, pictures)
    file, optimized = tmp_path / "encoder.onnx", tmp_path / "optimized.onnx"
    write_onnx(file, encoder, [pictures[:1]], ["frame"], ["features"], {}, "points")
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(optimized)
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(optimized).graph.node]
    assert operators.count("QLinearConv") == 14  # 6 blocks of two, and 2 shortcuts
    (features,) = session.run(None, {"frame": pictures[:1].numpy()})
    error = (torch.from_numpy(features) - encoder(pictures[:1])).norm()
    assert error < 0.05 * (encoder(pictures[:1]) - encoder.positions).norm()
