"""Results of operators that were called on fake tensors of the same shapes before.

A step repeats its operators frame by frame and block by block. Torch works each one out again, or
takes long to look it up; here a call is known by a key, and its result is made from a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

# Their results follow from the arguments; what an operator of anyone else does is not known.
NAMESPACES = ("aten", "prims", "overt")
# Their results depend on values, or they change more of an argument than its values.
UNCERTAIN = (
    torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view,
)  # fmt: skip
# Arguments that belong into a key as they are, with their type: 1 and 1.0 give other results.
PLAIN = (
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class Output(NamedTuple):
    """A tensor of a result: new, or on the storage of one of the tensors of the call."""

    source: int | None  # among those tensors; None: new
    is_source: bool  # it is that tensor itself
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def make(self, tensors: Sequence[FakeTensor]) -> FakeTensor:
        if self.source is not None and self.is_source:
            return tensors[self.source]
        bare = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        if self.source is not None:
            storage = tensors[self.source].untyped_storage()
            bare.set_(storage, self.offset, self.shape, self.stride)
        return FakeTensor(tensors[0].fake_mode, bare, self.device)


class Repeat(NamedTuple):
    """What is known of a call: how its result is made, and its FLOPs."""

    outputs: tuple[Output, ...]
    container: type | None  # of several outputs
    flops: int

    def make(self, tensors: Sequence[FakeTensor]) -> Any:
        """Return the result of a call on these tensors, without any operator."""
        # Neither the modes that called, nor those below, take part in this.
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            made = [output.make(tensors) for output in self.outputs]
        return made[0] if self.container is None else self.container(made)


class Call:
    """A call of an operator: `key` is None where its result may differ from that of its repeats."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.tensors: list[FakeTensor] = []
        parts: list[Any] = [function, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        with torch._C.DisableTorchFunction():
            is_known = self._describe(args, parts)
            for name, value in kwargs.items():
                parts.append(name)
                is_known = is_known and self._describe((value,), parts)
        self.key = tuple(parts) if is_known and self.tensors else None

    def _describe(self, values: Sequence[Any], parts: list[Any]) -> bool:
        parts.append(len(values))
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.constant is not None or value.layout is not torch.strided:
                    return False
                self.tensors.append(value)
                parts += (value.shape, value.stride(), value.storage_offset(), value.dtype)
                parts += (value.fake_device, value.is_conj(), value.is_neg())
            elif kind in PLAIN:
                parts += (kind, value)
            elif not (kind in (list, tuple, torch.Size) and self._describe(value, parts)):
                return False
        return True

    def repeat(self, result: Any, flops: int) -> Repeat | None:
        """Return how to make this call's result again; None where it has to be worked out."""
        function = self.function
        if function.namespace not in NAMESPACES or any(t in function.tags for t in UNCERTAIN):
            return None
        container = type(result) if type(result) in (list, tuple) else None
        values = [result] if container is None else list(result)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            outputs = [self._output(value) for value in values]
            new = [
                value.untyped_storage()._cdata
                for value, output in zip(values, outputs, strict=True)
                if output is not None and output.source is None
            ]
        if not outputs or None in outputs or len(set(new)) < len(new):
            return None
        return Repeat(tuple(filter(None, outputs)), container, flops)

    def _output(self, value: Any) -> Output | None:
        """Return how to make this tensor again; None where shape and stride do not tell."""
        if type(value) is not FakeTensor:
            return None
        shape, stride, dtype = tuple(value.shape), value.stride(), value.dtype
        meta = (shape, stride, int(value.storage_offset()), dtype, value.fake_device)
        same = [index for index, tensor in enumerate(self.tensors) if tensor is value]
        if same:  # of two equal arguments neither is known to be the one
            return Output(same[0], True, *meta) if len(same) == 1 else None
        flags = (value.requires_grad, value.is_conj(), value.is_neg())
        if value.constant is not None or value.layout is not torch.strided or any(flags):
            return None
        storage = value.untyped_storage()
        sources = [tensor.untyped_storage()._cdata for tensor in self.tensors]
        if storage._cdata in sources:
            is_one = sources.count(storage._cdata) == 1
            return Output(sources.index(storage._cdata), False, *meta) if is_one else None
        again = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        is_whole = again.untyped_storage().nbytes() == storage.nbytes()
        return Output(None, False, *meta) if is_whole and value.storage_offset() == 0 else None
