"""overt/ops/attention/api.py where the Triton kernels do not run."""

import torch
from attention_written_out import written_out

from overt.ops.attention.api import attend, attend_within, attention_in_layers, can_attend
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


def test_layers_of_torch_do_without_cudnn_where_they_have_a_gradient() -> None:
    def allowed() -> tuple[bool, bool]:
        return torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()

    tokens = torch.zeros(2, 1, 4)
    with attention_in_layers(tokens):
        assert allowed() == (False, True)
    with torch.no_grad(), attention_in_layers(tokens):
        assert allowed() == (True, True)
