"""Frames per second of LBM's online tracker, and its deformable attention against grid_sample.

    python benchmarks/online.py frames                       10 and 256 points, fp16, CUDA graphs
    python benchmarks/online.py frames --compile             the same, compiled
    python benchmarks/online.py attention                    forward and backward at training size
    python benchmarks/online.py frames --tiny --device cpu   anywhere, to try the script
    python benchmarks/online.py onnx --size 256 256          the exported step on two CPU cores

Frames lie on the device already; a synchronization follows every frame, as a camera would ask for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from command import guarded, need_device, positive
from onnx_step import onnx
from torch import Tensor

from overt.config import build_recipe, load
from overt.ops.deformable.api import deformable
from overt.ops.deformable.plain import deformable_plain
from overt.ops.dispatch import HAS_TRITON
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.online import OnlineTracker
from overt.recipes.lbm.pyramid import level_sizes

PUBLISHED = 49.5  # frames per second on an H200
GOALS = {10: 900.0, 256: 700.0}  # the same, by number of points
GOAL_ATTENTION = 3.0


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def frames(options: argparse.Namespace, device: torch.device) -> None:
    """The tracker frame by frame, for several numbers of points."""
    recipe = build_recipe(
        load([f"recipe={'lbm_tiny' if options.tiny else 'lbm'}", "data.root=none"])
    )
    torch.manual_seed(0)
    model = recipe.build_model().eval().to(device)
    assert isinstance(model, LBM)
    height, width = model.input_size
    video = torch.randint(256, (8, 3, height, width), device=device).to(torch.uint8)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    for points in options.points:
        tracker = OnlineTracker(
            model, (height, width), points, dtype=dtype, compile=options.compile
        )
        began = time.perf_counter()
        tracker.observe(video[0])
        tracker.add(torch.rand(points, 2) * torch.tensor([width - 1.0, height - 1.0]))
        tracker.advance()
        synchronize(device)
        first_seconds = time.perf_counter() - began
        for _ in range(options.warm_up):
            tracker.step(video[0])
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = []
        for number in range(options.frames):
            synchronize(device)
            began = time.perf_counter()
            tracker.step(video[number % len(video)])
            synchronize(device)
            times.append(time.perf_counter() - began)
        seconds = statistics.median(times)
        print(
            f"{points:4d} points, {height}x{width}, memory {tracker.memory_size}, {dtype}"
            f"{', compiled' if options.compile else ''}: {1000 * seconds:.3f} ms a frame, "
            f"{1 / seconds:.1f} frames/s; first frame {first_seconds:.1f} s"
        )
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated() / 2**30
            goal = f" (goal {GOALS[points]:g} frames/s)" if points in GOALS else ""
            print(
                f"     published {PUBLISHED} frames/s: {1 / seconds / PUBLISHED:.1f} x{goal}, "
                f"peak {peak:.2f} GiB"
            )


def attention(options: argparse.Namespace, device: torch.device) -> None:
    """The kernels against grid_sample on the same inputs, in the training's first layer."""
    batch, queries, heads, places, channels = 4, 256 * 9, 4, 9, 64
    cells = (96, 128)
    if options.tiny:
        batch, queries, cells = 1, 16, (8, 8)
    sizes = level_sizes(cells, 4)
    count = sum(height * width for height, width in sizes)
    generator = torch.Generator().manual_seed(0)
    kind = torch.float16 if device.type == "cuda" else torch.float32

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, kind).requires_grad_()

    values = make(batch, count, heads, channels)
    offsets = (make(batch, queries, heads, 4, places, 2) * 3).detach().requires_grad_()
    logits = make(batch, queries, heads, 4, places)
    reference = torch.rand(batch, queries, 1, 2, generator=generator).expand(-1, -1, 4, -1)
    reference = reference.to(device)
    gradient = torch.randn(batch, queries, heads, channels, generator=generator).to(device, kind)

    def run(form: Callable[..., Tensor], backward: bool) -> None:
        result = form(values, reference, offsets, logits, sizes)
        if backward:
            torch.autograd.grad(result, (values, offsets, logits), gradient)

    def seconds(form: Callable[..., Tensor], backward: bool) -> float:
        for _ in range(options.warm_up):
            run(form, backward)
        times = []
        for _ in range(options.frames):
            synchronize(device)
            began = time.perf_counter()
            run(form, backward)
            synchronize(device)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    fused = HAS_TRITON and device.type == "cuda"
    print(f"{batch} x {queries} queries, {heads} heads, 4 levels of {places} places, {kind}")
    for word, backward in (("forward", False), ("forward and backward", True)):
        plain, kernel = seconds(deformable_plain, backward), seconds(deformable, backward)
        print(
            f"  {word:21} grid_sample {1000 * plain:8.3f} ms, "
            f"{'kernel' if fused else 'the same'} {1000 * kernel:8.3f} ms: {plain / kernel:.2f} x"
            + (f" (goal {GOAL_ATTENTION:g} x)" if fused else "")
        )


SECTIONS = {"frames": frames, "attention": attention, "onnx": onnx}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", choices=tuple(SECTIONS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--points", type=positive, nargs="+", default=[10, 256])
    parser.add_argument("--compile", action="store_true", help="frames: with torch.compile")
    parser.add_argument("--frames", type=positive, default=100, help="timed repetitions")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    exported = parser.add_argument_group("onnx")
    exported.add_argument("--size", type=positive, nargs=2, metavar=("HEIGHT", "WIDTH"))
    exported.add_argument("--threads", type=positive, default=2)
    exported.add_argument(
        "--forms", nargs="+", choices=("any", "cpu", "int8"), default=["any", "cpu"]
    )
    exported.add_argument("--runtime", choices=("onnx", "torch"), default="onnx")
    exported.add_argument("--rows", type=int, default=6, help="operators to list")
    options = parser.parse_args(arguments)
    if options.compile and options.section != "frames":
        parser.error(f"--compile is for frames, not for {options.section}; drop it")
    if options.section == "onnx":
        options.device = "cpu"
    need_device(options.device)
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}")
    SECTIONS[options.section](options, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
