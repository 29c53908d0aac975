"""Fake tensors follow CUDA's path inside the context, and nothing is left behind after it."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from overt.ops import dispatch
from overt.tools.plan.cuda_rules import as_on_cuda
from overt.tools.plan.live_memory import LiveMemory


def test_code_that_asks_sees_cuda() -> None:
    with FakeTensorMode(), as_on_cuda():
        x = torch.zeros(3, device="cuda")
        assert x.is_cuda
        assert x.device == torch.device("cuda", 0)
        assert torch.ones(2, device=x.device).is_cuda
        assert x.to("cuda:0").cuda().device.type == "cuda"


def test_autocast_has_the_rules_of_cuda() -> None:
    found = {}
    with FakeTensorMode(), as_on_cuda(), torch.autocast("cuda", torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        x = nn.Linear(8, 8)(torch.zeros(4, 8))
        found["linear"] = x.dtype
        found["norm"] = nn.LayerNorm(8)(x).dtype
        found["softmax"] = x.softmax(-1).dtype
        found["einsum"] = torch.einsum("ij,kj->ik", x.float(), x.float()).dtype
        found["gelu"] = F.gelu(x).dtype
        found["mse"] = F.mse_loss(x, x).dtype
        found["resize"] = F.interpolate(x.view(1, 1, 4, 8), scale_factor=2, mode="bilinear").dtype
        with torch.autocast("cuda", enabled=False):
            found["island"] = nn.Linear(8, 8)(torch.zeros(4, 8)).dtype
    narrow = {name for name, dtype in found.items() if dtype == torch.bfloat16}
    assert narrow == {"linear", "einsum", "gelu", "resize"}


def test_the_cpu_has_its_own_rules_back_afterwards() -> None:
    with FakeTensorMode(), as_on_cuda():
        pass
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.LayerNorm(8)(torch.zeros(4, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert not torch.zeros(1).is_cuda


def test_kernels_are_reached_by_their_shapes_and_left_alone_afterwards() -> None:
    before, modules = dispatch.HAS_TRITON, "triton" in sys.modules
    with FakeTensorMode(), as_on_cuda():
        assert dispatch.HAS_TRITON
        from overt.ops.dropout.kernels import dropout_fused

        x = torch.zeros(4, 8, device="cuda")
        seed = torch.zeros(1, dtype=torch.int64, device="cuda")
        assert dropout_fused(x, seed, 0, 0.5).shape == x.shape
    assert before == dispatch.HAS_TRITON
    assert ("triton" in sys.modules) == (modules or before)


def test_shape_functions_of_operators_may_name_the_device_of_an_argument() -> None:
    @torch.library.custom_op("overt_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @doubled.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape, device=x.device)

    with FakeTensorMode(), as_on_cuda():
        x = torch.zeros(3, device="cuda")
        assert (x + doubled(x)).is_cuda


def test_what_is_computed_again_gets_the_same_answers() -> None:
    seen = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.is_cuda)
        return F.dropout(x, 0.5).exp()

    with FakeTensorMode(), as_on_cuda():
        x = torch.zeros(4, requires_grad=True)
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert seen == [True, True]


def test_an_error_inside_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError), FakeTensorMode(), as_on_cuda():
        raise ZeroDivisionError
    assert not torch.zeros(1).is_cuda
    assert torch.zeros(1).device.type == "cpu"


def attention_layer(x: torch.Tensor) -> torch.Tensor:
    layer = nn.MultiheadAttention(64, 2, dropout=0.1, batch_first=True, dtype=x.dtype)
    mixed: torch.Tensor = layer(x, x, x, need_weights=False)[0]
    return mixed


def attention(x: torch.Tensor) -> torch.Tensor:
    head = x[:, None]
    return F.scaled_dot_product_attention(head, head, head, dropout_p=0.1)


@pytest.mark.parametrize("attend", [attention, attention_layer])
def test_attention_with_dropout_is_one_fused_operator(
    attend: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Which keeps no table of all pairs: here half a gibibyte for each head."""
    memory = LiveMemory()
    with FakeTensorMode(), as_on_cuda(), memory:
        x = torch.zeros(1, 2**14, 64, dtype=torch.bfloat16, requires_grad=True)
        attend(x).sum().backward()
    assert memory.peak < 2**27
