"""How exact the arithmetic is: float32, TF32 on tensor cores, or autocast to a 16-bit type."""

from __future__ import annotations

import os

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_precision(precision: str, deterministic: bool) -> None:
    """Set torch's global switches. Only `fp32` keeps every matrix product in full float32."""
    exact = precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:  # read when cuBLAS starts: one workspace, so that sums have one order
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)


def slow_precision(precision: str, device: torch.device) -> str | None:
    """Return what to set instead where the CPU emulates bf16: a step can take an hour then."""
    if precision != "bf16" or device.type != "cpu":
        return None
    has_kernels = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_kernels or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return (
        "this CPU has no bf16 and emulates it, many times slower than float32; set "
        "training.precision=fp32"
    )


def memory_in_use(device: torch.device) -> int:
    """Bytes: the peak on the CUDA device, or the current use of a Mac's GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    import resource

    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except FileNotFoundError:  # not Linux: the peak, which macOS gives in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()
