"""FLOPs of operators, a multiplication and an addition being two.

Torch's own table holds matrix products, convolutions and attention; here is what it does not know.
Norms, activations, gathers and other work on single numbers count nothing, as is the custom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


def count_flops(operator: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    """Return the FLOPs of one call, 0 if unknown."""
    packet = operator._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    formula = FORMULAS.get(str(packet))
    return 0 if formula is None else formula(*args)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    shapes = (query.shape, key.shape, value.shape)
    return int(sdpa_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _packed_attention(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, *_: Any) -> int:
    return _within_sequences(query.shape, offsets)


def _within_sequences(shape: tuple[int, ...], offsets: Tensor) -> int:
    tokens, heads, width = shape
    mean_length = tokens / max(len(offsets) - 1, 1)  # the true lengths are values, not sizes
    return int(4 * tokens * mean_length * heads * width)


def _packed_attention_backward(gradient: Tensor, *args: Any) -> int:
    # Five products where the forward pass has two.
    query, key, value, offsets = args[0], args[1], args[2], args[5]
    return _packed_attention(query, key, value, offsets) * 5 // 2


def _short_attention(qkv: Tensor, offsets: Tensor, *_: Any) -> int:
    return _within_sequences((len(qkv), *qkv.shape[2:]), offsets)


def _short_attention_backward(gradient: Tensor, qkv: Tensor, offsets: Tensor, *_: Any) -> int:
    return _short_attention(qkv, offsets) * 5 // 2


def _correlate(
    cells: Tensor, used: Tensor, support: Tensor, rows: Tensor, sizes: Tensor, centres: Tensor,
    radius: int,
) -> int:  # fmt: skip
    batch, points, levels, frames, _ = centres.shape
    products = (2 * radius + 2) ** 2 * (2 * radius + 1) ** 2
    forward = 2 * batch * points * levels * frames * products * cells.shape[-1]
    return 3 * forward  # the backward pass is launched without a separate operator


FORMULAS: dict[str, Callable[..., int]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "torch_attn._varlen_attn": _packed_attention,
    "torch_attn._varlen_attn_backward": _packed_attention_backward,
    "overt.attend_short": _short_attention,
    "overt.attend_short_backward": _short_attention_backward,
    "overt.correlate": _correlate,
}
