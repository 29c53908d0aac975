"""Run code on fake CPU tensors along the path that it would take on a CUDA device.

Fake CUDA tensors need a torch built for CUDA; these need none. Code that asks sees `cuda`, autocast
follows CUDA's rules, and Triton kernels are reached through the shapes that they declare.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import overt.ops
from overt.ops import dispatch

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

# Where CUDA's autocast differs from the CPU's. These compute in float32 ...
IN_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "triplet_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "prod", "prod.dim_int", "softmax.int",
    "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList", "norm.Scalar",
    "norm.ScalarOpt_dim",
)  # fmt: skip
# ... and these, which the CPU's autocast computes in float32, take what they are given.
AS_GIVEN = (
    "avg_pool3d", "grid_sampler", "polar", "quantile", "nanquantile", "stft", "trace",
    "view_as_complex", "cummax", "cummin", "interpolate", "upsample_nearest1d.vec",
    "upsample_nearest2d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec", "upsample_linear1d.vec", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "reflection_pad1d", "reflection_pad2d", "multi_margin_loss",
)  # fmt: skip


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Within this context fake tensors say that they are on CUDA, and are treated so."""
    with ExitStack() as stack:
        stack.enter_context(_kernels())
        stack.enter_context(_autocast())
        stack.enter_context(patch.object(FakeTensor, "device", property(_device)))
        stack.enter_context(_backward())
        stack.enter_context(_attention())
        stack.enter_context(Answers())
        yield


@contextmanager
def _backward() -> Iterator[None]:
    """What is computed again in the backward pass, where modes are off, gets the same answers."""
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def answered(*args: Any, **kwargs: Any) -> Any:
        with Answers():
            return run(*args, **kwargs)

    with patch.object(torch.autograd, "_engine_run_backward", answered):
        yield


def _device(tensor: Any) -> torch.device:
    """`cuda` to whoever asks, but for torch itself, which has to find a device that exists."""
    if tensor.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    # Inside an operator, as in the function of its shapes, nothing reads `cuda` as the stand-in.
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if not any(isinstance(mode, Answers) for mode in modes):
        return tensor.fake_device  # type: ignore[no-any-return]
    asks = sys._getframe(1).f_globals.get("__name__", "")
    is_torch = asks == "torch" or asks.startswith("torch.")
    return tensor.fake_device if is_torch else CUDA


class Answers(TorchFunctionMode):
    """Answers `is_cuda`, and reads `cuda` as the stand-in wherever a device is asked for."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__self__", None) is Tensor.is_cuda:
            return isinstance(args[0], FakeTensor)
        if function in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if function is torch.nn.functional.dropout:
            return _dropout(*args, **kwargs)
        if function is torch.device:  # a name, not yet a place
            return function(*args, **kwargs)
        args = tuple(_stand_in(value) for value in args)
        return function(*args, **{name: _stand_in(value) for name, value in kwargs.items()})


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """On CUDA one kernel, which keeps a mask of bytes."""
    if not training or p == 0:
        return x
    if inplace:
        return torch.dropout_(x, p, training)
    return torch.native_dropout(x, p, True)[0]


@contextmanager
def _attention() -> Iterator[None]:
    """CUDA's fused kernels drop on their way; the CPU's know no dropout and would be left alone.

    By name, since torch's own layers call it where no mode sees them.
    """
    attend = torch.nn.functional.scaled_dot_product_attention

    def without_dropout(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        *further: Any,
        **named: Any,
    ) -> Tensor:
        return attend(query, key, value, attn_mask, 0.0, *further, **named)

    with patch.object(torch.nn.functional, "scaled_dot_product_attention", without_dropout):
        yield


@contextmanager
def _autocast() -> Iterator[None]:
    """CUDA's rules in place of the CPU's, and `autocast("cuda")` read as that of the CPU."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    begin = torch.amp.autocast_mode.autocast.__init__

    def initialize(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, _stand_in(device_type), *args, **kwargs)

    def is_enabled(device_type: str | None = None) -> bool:
        return enabled("cpu" if device_type is None else _stand_in(device_type))

    rules: dict[str, Callable[[Any], Any]] = dict.fromkeys(IN_FLOAT32, _in_float32)
    rules |= dict.fromkeys(AS_GIVEN, lambda _: torch.library.fallthrough_kernel)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the CPU's rules are overridden
            for name, rule in rules.items():
                operator = _overload(name)
                if operator is not None:
                    library.impl(name, rule(operator), "AutocastCPU", allow_override=True)
        with (
            patch.object(torch.amp.autocast_mode.autocast, "__init__", initialize),
            patch.object(torch, "is_autocast_enabled", is_enabled),
            patch.object(torch, "get_autocast_dtype", lambda kind: dtype(_stand_in(kind))),
        ):
            yield
    finally:
        library._destroy()


def _overload(name: str) -> Any:
    """Return the operator of this torch, if it has it."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def _in_float32(operator: Any) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def widen(value: Any) -> Any:
        narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
        return value.float() if narrow else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            args = tuple(widen(value) for value in args)
            return operator(*args, **{name: widen(value) for name, value in kwargs.items()})

    return run


@contextmanager
def _kernels() -> Iterator[None]:
    """Reach the Triton operators, even where Triton is not installed: only shapes are asked for."""
    with ExitStack() as stack:
        if dispatch.HAS_TRITON:
            from triton.runtime.jit import JITFunction

            # A kernel that is launched outside an operator has its results in hand already.
            stack.enter_context(patch.object(JITFunction, "run", lambda *_, **__: None))
        else:
            _import_kernels()
        stack.enter_context(patch.object(dispatch, "HAS_TRITON", True))
        yield


def _import_kernels() -> None:
    """Import every module of kernels with a stand-in for Triton, whose kernels nobody will run."""
    stand_ins = {name: _Anything(name) for name in ("triton", "triton.language")}
    folder = Path(overt.ops.__file__).parent
    sys.modules.update(stand_ins)
    try:
        for path in sorted(folder.glob("*/*kernels.py")):
            import_module(f"overt.ops.{path.parent.name}.{path.stem}")
    finally:
        for name in stand_ins:
            del sys.modules[name]


class _Anything(ModuleType):
    """A module whose every name is a decorator, an annotation or a constant that is never used."""

    cdiv = staticmethod(lambda dividend, divisor: -(-dividend // divisor))
    next_power_of_2 = staticmethod(lambda number: 1 << max(number - 1, 0).bit_length())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()


class _Name:
    """Takes every call and every launch, and does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getitem__(self, grid: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self
