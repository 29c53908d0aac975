"""overt/recipes/lbm/cpu_int8.py: convolutions and products with 8 bits."""

import importlib.util
from pathlib import Path

import pytest
import torch
from small_recipes import small_lbm
from torch import nn

from overt.files.onnx_file import write_onnx
from overt.recipes.lbm import cpu_int8
from overt.recipes.lbm.cpu_encoder import CpuEncoder
from overt.recipes.lbm.cpu_int8 import (
    Convolution,
    Int8Stages,
    Product,
    Quantize,
    calibrate,
    round_products,
)
from overt.recipes.lbm.cpu_step import CpuStep

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


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_a_product_differs_by_rounding_only(bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(40, 30, bias)
    linear.weight[3] *= 100  # each output has a scale of its own
    product = Product(linear)
    x = torch.randn(2, 7, 40) + 0.5
    wanted = linear(x)
    error = (product(x) - wanted).flatten(0, 1).norm(dim=0) / wanted.flatten(0, 1).norm(dim=0)
    assert error.max() < 0.03
    assert error.max() > 1e-4
    # One result per level, 153 to 255: the range of the input is that from zero.
    one = Product(nn.Linear(1, 1, bias=False))
    rows = torch.linspace(0.6, 1, 2000).unsqueeze(1)
    assert len(one(rows).unique()) == 103
    torch.testing.assert_close(one(0 * rows), 0 * rows)


@torch.no_grad()
def test_only_large_products_are_rounded() -> None:
    large, narrow = nn.Linear(128, 200), nn.Linear(200, 127)
    network = nn.Sequential(large, nn.Sequential(narrow, nn.Linear(127, 300)))
    x = torch.randn(4, 128)
    round_products(network)
    kinds = [type(part) for part in network.modules() if not isinstance(part, nn.Sequential)]
    assert kinds == [Product, nn.Linear, nn.Linear]
    assert network[1][0] is narrow
    assert not torch.equal(network[0](x), large(x))


@torch.no_grad()
def test_the_model_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_int8, "SMALLEST_PRODUCT", 16)
    torch.manual_seed(0)
    model = small_lbm(input_size=(64, 64)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step = CpuStep(model, 4, 0.5, 10, torch.rand(1, 3, 64, 64) * 255)
    assert sum(isinstance(part, Product) for part in step.modules()) > 10
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not any(isinstance(part, Product) for part in model.modules())


@needs_onnx
@torch.no_grad()
def test_onnx_runtime_multiplies_as_here(tmp_path: Path) -> None:
    import onnxruntime

    torch.manual_seed(0)
    linears = nn.Linear(24, 40), nn.Linear(40, 8, bias=False)
    for linear in linears:
        linear.weight[:, ::2] = 0  # x86 CPUs without VNNI saturate sums of two products
    network = nn.Sequential(Product(linears[0]), nn.ReLU(), Product(linears[1]))
    file = tmp_path / "products.onnx"
    write_onnx(file, network, [torch.randn(3, 24)], ["x"], ["y"], {"x": 0, "y": 0}, "rows")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (1, 3, 10):  # any number of rows
        x = torch.randn(count, 24)
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), network(x), atol=0.02, rtol=0.02)


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
