"""overt/ops/attention/api.py where the Triton kernels do not run."""

from typing import Any

import pytest
import torch
from attention_written_out import written_out

from overt.ops.attention.api import (
    attend,
    attend_within,
    attention,
    attention_in_layers,
    can_attend,
)
from overt.ops.attention.packing import Packing


def test_equal_weights_give_the_mean() -> None:
    values = torch.randn(5, 1, 4)
    found = attend(torch.zeros(5, 1, 4), torch.randn(5, 1, 4), values, Packing.of([2, 3]))
    expected = [values[:2].mean(0)] * 2 + [values[2:].mean(0)] * 3
    torch.testing.assert_close(found, torch.stack(expected))


def test_equal_sequences_without_kernels() -> None:
    qkv = torch.randn(3, 7, 3, 2, 5)
    torch.testing.assert_close(attend_within(qkv), written_out(qkv))


def test_what_the_kernels_cannot_serve_is_left_to_others() -> None:
    assert not can_attend(torch.zeros(4, 3, 2, 32, dtype=torch.bfloat16), 64)  # not on CUDA


def allowed() -> tuple[bool, bool]:
    return torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()


def test_layers_of_torch_do_without_cudnn_where_they_have_a_gradient() -> None:
    tokens = torch.zeros(2, 1, 4)
    with attention_in_layers(tokens):
        assert allowed() == (False, True)
    with torch.no_grad(), attention_in_layers(tokens):
        assert allowed() == (True, True)


def test_so_does_a_single_query(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    attend_by_torch = torch.nn.functional.scaled_dot_product_attention

    def watched(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.append(allowed())
        return attend_by_torch(*inputs, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    keys = torch.randn(2, 3, 5, 4)
    attention(keys[:, :, :1], keys, keys)
    attention(keys, keys, keys)
    with torch.no_grad():
        attention(keys[:, :, :1], keys, keys)
    assert seen == [(False, True), (True, True), (True, True)]
