"""overt/engine/precision.py: the switches of torch that a precision sets; memory in use."""

from collections.abc import Iterator

import pytest
import torch

from overt.engine.precision import memory_in_use, set_precision, slow_precision


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Leave torch as it was for the other tests."""
    yield
    set_precision("fp32", deterministic=False)


@pytest.mark.parametrize(
    ("precision", "products", "tf32"),
    [("fp32", "highest", False), ("tf32", "high", True), ("bf16", "high", True)],
)
def test_only_fp32_keeps_every_product_exact(precision: str, products: str, tf32: bool) -> None:
    set_precision(precision, deterministic=False)
    assert torch.get_float32_matmul_precision() == products
    assert torch.backends.cudnn.allow_tf32 == tf32


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_kernels_on_request(deterministic: bool) -> None:
    set_precision("fp32", deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.backends.cudnn.benchmark != deterministic


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bf16_is_called_slow_on_a_cpu_that_emulates_it(
    monkeypatch: pytest.MonkeyPatch, precision: str, supported: bool, device: str
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    said = slow_precision(precision, torch.device(device))
    assert (said is not None) == (precision == "bf16" and device == "cpu" and not supported)


def test_memory_of_this_process_grows_with_what_it_holds() -> None:
    before = memory_in_use(torch.device("cpu"))
    held = torch.ones(2**26)  # 256 MiB, every page written
    assert memory_in_use(torch.device("cpu")) - before > 200 * 2**20
    assert held[0] == 1
