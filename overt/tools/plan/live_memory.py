"""Bytes of the tensors that are alive, as CUDA's allocator counts them, and their peak.

A dispatch mode sees every operator, below autograd: what a result's storage takes is added when it
appears and taken away when the last tensor on it is gone, as on the device.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from overt.tools.plan.operator_flops import count_flops
from overt.tools.plan.repeats import Call, Repeat

BLOCK = 512  # bytes: sizes are rounded up to a multiple
# Operators that add up a gradient in float32 before they hand it out in 16 bits: that of their
# second argument (the query, the values).
WIDE_SUMS = (
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_varlen_attn_backward",
    "deformable_backward",
)

ACTIVATIONS = "activations"


def rounded(count: int) -> int:
    """Return bytes that the allocator hands out for this many."""
    return -(-count // BLOCK) * BLOCK


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts live bytes by what they are for; `peak` and `flops` are since the last `reset`."""

    # Of all steps of this process: those of a plan repeat each other. None: is worked out always.
    repeats: ClassVar[dict[Any, Repeat | None]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's guard against it slows every call

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: Counter[str] = Counter()
        self.total = 0
        self.known: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the peaks, not what is alive."""
        self.peak, self.at_peak = self.total, Counter(self.live)
        self.flops = 0
        # Of everything but gradients: where these lie in buckets, they are always there.
        self.peak_besides_gradients = self.total - self.live["gradients"]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.prim.device.default:  # asked for many times by each operator
            mode, device = args[0].fake_mode, args[0].fake_device
            return torch.device("meta") if mode.in_kernel_invocation else device
        result, flops = self._run(Call(function, args, kwargs or {}), args, kwargs or {})
        for value in (result,) if isinstance(result, Tensor) else tree_iter(result):
            if isinstance(value, Tensor):
                self.add(value, ACTIVATIONS)
        self.flops += flops
        if function.__name__.partition(".")[0] in WIDE_SUMS and args[1].element_size() == 2:
            self._note_peak(rounded(4 * args[1].numel()))
        return result

    def _run(self, call: Call, args: Any, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Return the result of an operator and its FLOPs, from memory where it is a repeat."""
        repeat = None if call.key is None else self.repeats.get(call.key)
        if repeat is not None:
            return repeat.make(call.tensors), repeat.flops
        result = call.function(*args, **kwargs)
        flops = count_flops(call.function, args, kwargs, result)
        if call.key is not None and call.key not in self.repeats:
            self.repeats[call.key] = call.repeat(result, flops)
        return result, flops

    def add(self, tensor: Tensor, purpose: str) -> None:
        """Count this tensor's storage, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        size = rounded(storage.nbytes())
        reference = weakref.ref(storage, partial(self._forget, key))
        self.known[key] = (reference, purpose, size)
        self.live[purpose] += size
        self.total += size
        self._note_peak(0)

    def assign(self, tensors: Iterable[Tensor], purpose: str) -> None:
        """Say what these tensors are for; they are counted from here on if they were not."""
        for tensor in tensors:
            self.add(tensor, purpose)
            key = tensor.untyped_storage()._cdata
            reference, before, size = self.known[key]
            self.known[key] = (reference, purpose, size)
            self.live[before] -= size
            self.live[purpose] += size

    def resize(self, tensor: Tensor) -> None:
        """Count a storage again whose size has changed in place."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.known:
            reference, purpose, before = self.known[storage._cdata]
            size = rounded(storage.nbytes())
            self.known[storage._cdata] = (reference, purpose, size)
            self.live[purpose] += size - before
            self.total += size - before
            self._note_peak(0)

    def _forget(self, key: int, _: object) -> None:
        _, purpose, size = self.known.pop(key)
        self.live[purpose] -= size
        self.total -= size

    def _note_peak(self, workspace: int) -> None:
        total = self.total + workspace
        if total > self.peak:
            self.peak, self.at_peak = total, Counter(self.live)
            self.at_peak[ACTIVATIONS] += workspace
        besides = total - self.live["gradients"]
        self.peak_besides_gradients = max(self.peak_besides_gradients, besides)

    @staticmethod
    def gradient_bytes(parameters: Iterable[Tensor]) -> int:
        """Return what the gradients of these take, all together."""
        return sum(rounded(value.numel() * value.element_size()) for value in parameters)
