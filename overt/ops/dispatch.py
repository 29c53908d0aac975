"""One rule for every operation: its Triton kernels, or plain PyTorch.

The rule knows device, type, size and determinism (`training.deterministic`). The second half is for
operations of torch itself whose gradient on CUDA differs from run to run: what replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)  # kernels add in float32: float64 would lose its digits


@dataclass(frozen=True)
class Kernels:
    """What the kernels of one operation can serve."""

    repeatable: bool  # the same bits every time, in the backward pass too
    reason: str  # why they are repeatable, or are not
    dtypes: tuple[torch.dtype, ...] = FLOATS
    longest: int | None = None  # tokens of a sequence
    widest: int | None = None  # features (of a head), or channels of a group
    alignment: int = 1  # the features (of a head) are a multiple of this
    needs_triton: bool = True


KERNELS = {
    "attention": Kernels(
        True,
        "one program computes a head of a sequence; nothing is added up between programs",
        HALVES,
        longest=512,  # longer sequences are better served by several programs for each
        widest=128,
        alignment=8,  # 16-bit numbers that are read and written at once
    ),
    "correlation": Kernels(
        False, "the backward pass adds to cells and to queries with float atomics"
    ),
    "coverage": Kernels(False, "pixels add what faces cover with float atomics", (torch.float32,)),
    "deformable": Kernels(False, "the backward pass adds to the values with float atomics"),
    "dropout": Kernels(True, "each number depends on its index and the seed alone"),
    "entry_attention": Kernels(
        True,
        "one program computes a row, and a matrix product adds up rows",
        longest=64,  # entries of a row, which are held at once
        widest=512,
    ),
    "group_norm": Kernels(
        True,
        "one program computes whole groups of an image; torch adds images in a fixed order",
        widest=1024,  # channels of a group, which are read at once
    ),
    "jitter": Kernels(True, "its atomic sums are of integers, exact in any order", (torch.uint8,)),
    "layers": Kernels(True, "each pixel is computed by one program", (torch.float32,)),
    "linear_fp8": Kernels(
        True,
        "one matrix product of cuBLAS or CUTLASS, without a gradient",
        (torch.bfloat16,),  # of its inputs before rounding, and of its result
        alignment=16,  # 8-bit numbers that are read at once
        needs_triton=False,
    ),
    "linear_gelu": Kernels(
        True, "one matrix product of cuBLAS, without a gradient", HALVES, needs_triton=False
    ),
    "map_norm": Kernels(True, "sums of programs are stored, then added in a fixed order"),
    "max_pool": Kernels(True, "one program computes a pixel's gradient from all its windows"),
    "point_norm": Kernels(True, "sums of programs are stored, then added in a fixed order"),
    "point_pairs": Kernels(True, "each pair is written by one program", (torch.int32,)),
    "point_rows": Kernels(True, "one program adds the terms of a row, in a fixed order"),
    "point_search": Kernels(
        True,
        "comparisons only; its atomic sums are of integers, and choices do not depend on the order "
        "in which candidates are listed",
    ),
    "raster": Kernels(
        True, "its atomic minima are of integers, exact in any order", (torch.float32,)
    ),
    "top_k": Kernels(
        True,
        "comparisons only: each row is searched by one program",
        HALVES,  # a number and its index share 32 bits
        longest=16384,  # numbers of a row, which are held at once
    ),
}


def can_serve(
    kernels: Kernels,
    device_type: str,
    dtype: torch.dtype,
    *,
    deterministic: bool,
    has_triton: bool = True,
    length: int = 0,
    width: int = 0,
) -> bool:
    """Decide: a function of its arguments alone."""
    return (
        device_type == "cuda"
        and (has_triton or not kernels.needs_triton)
        and (kernels.repeatable or not deterministic)
        and dtype in kernels.dtypes
        and (kernels.longest is None or length <= kernels.longest)
        and (kernels.widest is None or width <= kernels.widest)
        and width % kernels.alignment == 0
    )


def use_kernels(
    operation: str,
    tensor: Tensor,
    *,
    dtype: torch.dtype | None = None,  # to compute in; that of the tensor
    length: int = 0,
    width: int = 0,
) -> bool:
    """Whether the kernels of an operation serve this tensor here and now."""
    return can_serve(
        KERNELS[operation],
        tensor.device.type,
        tensor.dtype if dtype is None else dtype,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        has_triton=HAS_TRITON,
        length=length,
        width=width,
    )


# Operations of torch whose backward pass on CUDA adds with float atomics. Those with a repeatable
# variant of torch's own (index_select, gather, index_add, convolutions, ...) are not listed.
REPLACED_IN_TORCH = {
    "attention": "flash and memory-efficient attention add the gradient of queries; torch warns "
    "and stays with them where `warn_only` is set",
    "grid_sample": "pixels add the gradients of all samples that read them",
    "max_pool": "a pixel adds the gradients of all windows in which it is the largest",
    "resize": "pixels add the gradients of all that is interpolated from them",
}


def must_replace(device_type: str, *, deterministic: bool, has_gradient: bool) -> bool:
    """Decide for `REPLACED_IN_TORCH`: a function of its arguments alone."""
    return device_type == "cuda" and deterministic and has_gradient


def replaces(operation: str, *inputs: Tensor) -> bool:
    """Whether an operation of torch gives way to a plain one with a repeatable gradient."""
    assert operation in REPLACED_IN_TORCH, operation
    return must_replace(
        inputs[0].device.type,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        has_gradient=torch.is_grad_enabled() and any(part.requires_grad for part in inputs),
    )


def compute_type(tensor: Tensor) -> torch.dtype:
    """The type of matrix products: autocast's where that is on, or the tensor's own."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
