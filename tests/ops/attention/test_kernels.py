"""overt/ops/attention/kernels.py against padded attention in float32."""

import pytest
import torch
from attention_written_out import written_out
from kernel_tests import DEVICE, ON_GPU, assert_same_results, kernel_test
from torch import Tensor

from overt.nested import map_tensors
from overt.nn.attention import Attention
from overt.ops.attention.api import attend_padded, attend_within, can_attend, packed_attention
from overt.ops.attention.packing import Packing

# Around the ends of tiles; every launch serves some and leaves some to others.
LENGTHS = [0, 1, 5, 64, 65, 16, 100, 63, 0, 128, 129, 200]
HEADS = 2
# The interpreter shows that the logic is right to the last bits; tensor cores take 16 bits.
TYPES = [torch.float16, torch.bfloat16] if ON_GPU else [torch.float32, torch.float16]
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def make_packing(lengths: list[int], bound: int) -> Packing:
    return map_tensors(Packing.of(lengths, bound), lambda tensor: tensor.to(DEVICE))


def make_input(packing: Packing, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    shape = (len(packing.padded_index), 3, HEADS, width)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def compare(lengths: list[int], bound: int, width: int, dtype: torch.dtype) -> None:
    packing = make_packing(lengths, bound)
    assert_same_results(
        lambda qkv: packed_attention(qkv, packing.offsets, packing.bound),
        lambda qkv: attend_padded(*qkv.float().unbind(1), packing),
        [make_input(packing, width, dtype)],
        TOLERANCES[dtype],
    )


@kernel_test
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [8, 32, 64, 80])  # 80 is that of ViT-H
def test_the_kernels_equal_padded_attention(width: int, dtype: torch.dtype) -> None:
    compare(LENGTHS, 257, width, dtype)


@kernel_test
@pytest.mark.parametrize(
    ("lengths", "bound"), [([64, 7], 64), ([3], 3), ([65, 0, 128], 128), ([300, 20], 512)]
)
def test_any_bound_serves_all_lengths_below(lengths: list[int], bound: int) -> None:
    compare(lengths, bound, 32, TYPES[0])


@kernel_test
def test_scores_of_hundreds_are_no_trouble() -> None:
    packing = make_packing([70, 130], 130)
    assert_same_results(
        lambda qkv: packed_attention(qkv * 8, packing.offsets, packing.bound),
        lambda qkv: attend_padded(*(qkv * 8).float().unbind(1), packing),
        [make_input(packing, 32, TYPES[0])],
        TOLERANCES[TYPES[0]] * 15,
    )


@kernel_test
@pytest.mark.parametrize("length", [1, 48, 64, 100])
def test_equal_sequences_are_packed_ones(length: int) -> None:
    assert_same_results(
        lambda qkv: attend_within(qkv),
        lambda qkv: written_out(qkv.float()),
        [torch.randn(5, length, 3, HEADS, 48).to(DEVICE, TYPES[1])],
        TOLERANCES[TYPES[1]],
    )


@kernel_test
def test_the_operator_keeps_its_promises_to_compile() -> None:
    from overt.ops.attention.kernels import attend_short

    packing = make_packing([3, 70], 128)
    qkv = make_input(packing, 16, TYPES[1]).requires_grad_()
    torch.library.opcheck(attend_short, (qkv, packing.offsets, 128))


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_compiled_layer_takes_the_kernels_for_any_number_of_tokens() -> None:
    torch.manual_seed(0)
    layer = Attention(160, heads=2).to(DEVICE)
    compiled = torch.compile(layer, dynamic=True)
    for lengths in ([30, 90, 150], [64, 2, 0, 77], [10, 120]):
        packing = make_packing(lengths, 257)
        tokens = torch.randn(sum(lengths), 160, device=DEVICE)
        assert can_attend(tokens.to(torch.bfloat16).view(-1, 1, 2, 80), packing.bound)
        parameters = list(layer.parameters())
        expected = layer(tokens, packing)
        weights = torch.randn_like(expected)
        wanted = torch.autograd.grad((expected * weights).sum(), parameters)
        with torch.autocast("cuda", torch.bfloat16):
            result = compiled(tokens, packing)
        found = torch.autograd.grad((result.float() * weights).sum(), parameters)
        for one, other in zip((result, *found), (expected, *wanted), strict=True):
            assert (one.float() - other).norm() < 1.5e-2 * other.norm()
