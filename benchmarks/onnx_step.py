"""Time of LBM's exported step on a CPU, for benchmarks/online.py onnx.

One frame after the other, the state passed on as in use; encoder and whole step are exported and
timed separately. The floor is their matrix operations over the rate of one large matrix product in
the same runtime. Weights are random, which does not change the time.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from overt.config import build_recipe, load
from overt.files.onnx_file import write_onnx
from overt.recipes.lbm.cpu_step import CpuStep
from overt.recipes.lbm.export import INPUTS, OUTPUTS, POINTS_AXIS, make_step
from overt.recipes.lbm.model import LBM

GOAL = 60.0  # frames per second on two cores at 256 x 256
STATE = INPUTS[3:]
Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]


class Product(nn.Module):
    """A matrix product as large as those of the step, for the rate that this machine reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 1024), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.weight


def onnx(options: argparse.Namespace, device: torch.device) -> None:
    """The exported step with encoder, floor and most expensive operators."""
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        measure_forms(options)
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def measure_forms(options: argparse.Namespace) -> None:
    name = "lbm_tiny" if options.tiny else "lbm"
    words = [f"recipe={name}", "data.root=none"]
    words += [f"model.input_size=[{options.size[0]},{options.size[1]}]"] if options.size else []
    torch.manual_seed(0)
    model = build_recipe(load(words)).build_model().eval().requires_grad_(False)
    assert isinstance(model, LBM)
    rows = torch.randn(2048, 256)
    product, _ = make_run(options, Product(), {"rows": rows.numpy()}, ("product",))
    rate = 0.0
    for points in options.points:
        for form in options.forms:
            step = make_step(
                model,
                model.memory_size,
                model.visible_threshold,
                points,
                cpu_points=None if form == "any" else points,
                pictures=torch.rand(1, 3, *model.input_size) * 255 if form == "int8" else None,
            )
            encoder = step.module.encoder if isinstance(step.module, CpuStep) else model.backbone
            frame = {"frame": step.example[0].numpy()}
            whole = measure(options, step.module, first_inputs(step.example), OUTPUTS)
            part = measure(options, encoder, frame, ("features",))
            flops = flops_of(step.module, step.example), flops_of(encoder, step.example[:1])
            # The machine may be busy for a while: the best rate so far is the machine's.
            product_times = time_frames(options, product, {"rows": rows.numpy()}, ("product",))
            rate = max(rate, flops_of(Product(), (rows,)) / min(product_times) / 1e9)
            report(options, points, form, whole, part, flops, rate)


def report(
    options: argparse.Namespace,
    points: int,
    form: str,
    whole: tuple[list[float], list[str]],
    encoder: tuple[list[float], list[str]],
    flops: tuple[float, float],
    rate: float,
) -> None:
    """Print times, operations and the floor."""
    best, median = min(whole[0]), statistics.median(whole[0])
    encoding = min(encoder[0])
    floor = flops[0] / rate / 1e9
    print(
        f"{points:4d} points, step for {form}: {1000 * best:.1f} ms, {1 / best:.1f} frames/s, best "
        f"of {len(whole[0])} frames (median {1000 * median:.1f} ms); goal {GOAL:g} frames/s\n"
        f"     encoder {1000 * encoding:.1f} ms of {flops[1] / 1e9:.2f} GFLOP, the rest "
        f"{1000 * (best - encoding):.1f} ms of {(flops[0] - flops[1]) / 1e9:.2f} GFLOP\n"
        f"     floor {1000 * floor:.1f} ms, {1 / floor:.1f} frames/s: a matrix product reaches "
        f"{rate:.0f} GFLOP/s on {options.threads} threads in {options.runtime}"
    )
    for row in whole[1][: options.rows]:
        print(f"     {row}")


def first_inputs(example: tuple[Tensor, ...]) -> Arrays:
    """Return a random frame, points in it that are all new, and an empty state."""
    inputs = dict(zip(INPUTS, (part.numpy() for part in example), strict=True))
    random = np.random.default_rng(0)
    *_, height, width = inputs["frame"].shape
    inputs["frame"] = random.integers(256, size=inputs["frame"].shape).astype(np.float32)
    positions = random.random(inputs["new_points"].shape) * [width - 1, height - 1]
    return inputs | {"new_points": positions.astype(np.float32)}


def measure(
    options: argparse.Namespace, module: nn.Module, inputs: Arrays, outputs: tuple[str, ...]
) -> tuple[list[float], list[str]]:
    """Return the seconds of each frame, and lines about the operators where they are asked for."""
    run, operators = make_run(options, module, inputs, outputs)
    return time_frames(options, run, inputs, outputs), operators(inputs)


def time_frames(
    options: argparse.Namespace, run: Run, inputs: Arrays, outputs: tuple[str, ...]
) -> list[float]:
    """Return the seconds of each frame; the state is passed on from frame to frame."""
    times = []
    for number in range(options.warm_up + options.frames):
        began = time.perf_counter()
        results = dict(zip(outputs, run(inputs), strict=True))
        seconds = time.perf_counter() - began
        if number >= options.warm_up:
            times.append(seconds)
        if "query_after" in results:
            state = {name: results[f"{name}_after"] for name in STATE}
            inputs = inputs | state | {"is_new": np.zeros_like(inputs["is_new"])}
    return times


def make_run(
    options: argparse.Namespace, module: nn.Module, inputs: Arrays, outputs: tuple[str, ...]
) -> tuple[Run, Callable[[Arrays], list[str]]]:
    """Return the module in the runtime that was asked for, and what profiles its operators."""
    if options.runtime == "torch":

        def eager(arrays: Arrays) -> list[np.ndarray]:
            results = module(*(torch.from_numpy(array) for array in arrays.values()))
            return [part.numpy() for part in (results if isinstance(results, tuple) else [results])]

        return eager, lambda arrays: []
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.onnx"
        example = [torch.from_numpy(array) for array in inputs.values()]
        free = {name: axis for name, axis in POINTS_AXIS.items() if name in inputs}
        write_onnx(file, module, example, tuple(inputs), outputs, free, "points")
        model = file.read_bytes()

    def start(profile: str | None) -> Any:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        if profile is not None:
            settings.enable_profiling, settings.profile_file_prefix = True, profile
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])

    def profile(arrays: Arrays) -> list[str]:
        if not options.rows:
            return []
        with tempfile.TemporaryDirectory() as folder:
            session = start(str(Path(folder) / "profile"))
            for _ in range(options.frames):
                session.run(None, arrays)
            return operator_lines(json.loads(Path(session.end_profiling()).read_text()))

    session = start(None)
    return lambda arrays: session.run(None, arrays), profile


def operator_lines(events: list[dict[str, Any]]) -> list[str]:
    """Sum the best time of every node by operator, the most expensive first."""
    best: dict[tuple[str, str], float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = event["args"]["op_name"], event["name"]
            best[key] = min(best.get(key, float("inf")), event["dur"] / 1000)
    total: collections.Counter[str] = collections.Counter()
    count: collections.Counter[str] = collections.Counter()
    for (operator, _), milliseconds in best.items():
        total[operator] += milliseconds  # type: ignore[assignment]
        count[operator] += 1
    return [
        f"{operator:24} {milliseconds:8.2f} ms in {count[operator]} nodes"
        for operator, milliseconds in total.most_common()
    ]


def flops_of(module: nn.Module, example: tuple[Tensor, ...]) -> float:
    """Return the operations of matrix products and convolutions."""
    with FlopCounterMode(display=False) as counter:
        module(*example)
    return float(counter.get_total_flops())
