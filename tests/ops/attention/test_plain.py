"""overt/ops/attention/plain.py against torch's own."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from overt.ops.attention.plain import attention_plain


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Two samples, three heads, 5 queries, 7 keys, 4 features."""
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_torch(scale: float | None, masked: bool) -> None:
    tensors = inputs()
    mask = torch.rand(2, 1, 1, 7) < 0.7 if masked else None
    if mask is not None:
        mask[..., 0] = True
    expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=scale)
    found = attention_plain(*tensors, mask, scale)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, tensors, weights)
    torch.testing.assert_close(torch.autograd.grad(found, tensors, weights), wanted)


def test_sixteen_bits_are_multiplied_in_float32() -> None:
    low = inputs(torch.bfloat16)
    found = attention_plain(*low)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, attention_plain(*(part.float() for part in low)).bfloat16())


def test_the_result_has_the_type_of_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = attention_plain(*inputs()), F.scaled_dot_product_attention(*inputs())
    assert found.dtype == expected.dtype == torch.bfloat16


def test_a_query_without_keys_harms_no_other() -> None:
    """As in a batch that is filled up with an empty sequence."""
    query, key, value = inputs()
    mask = torch.tensor([True, False]).view(2, 1, 1, 1).expand(2, 1, 1, 7)
    found = attention_plain(query, key, value, mask)
    gradients = torch.autograd.grad(found[0].sum(), (query, key, value))
    assert all(part.isfinite().all() for part in (found, *gradients))
    torch.testing.assert_close(found[0], attention_plain(query[0], key[0], value[0]))
