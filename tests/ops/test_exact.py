"""overt/ops/exact.py: rounded products are switched off within, and come back after."""

import torch

from overt.ops.exact import exact_products


def test_the_precision_of_products_comes_back() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        values = torch.full((2, 2), 1 + 2**-12)
        with torch.autocast("cpu", torch.bfloat16), exact_products(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
            assert (values @ values).dtype == torch.float32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
