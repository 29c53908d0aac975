"""From the loader to the device: a batch is copied, and prepared there by the recipe's `on_device`.

A step leaves the host long before the device has finished it. Where the recipe allows it, the next
batch is prepared in that time, on a stream beside the step: a host that waits in `on_device`
for what it computes then waits for that alone, not for the step. Where `on_device` is the same work
for every batch, it is recorded as a CUDA graph: launching hundreds of small kernels takes the host
longer than the step takes the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overt.engine.strategy.graph import MOST, WARM_UP
from overt.nested import map_tensors, tensors_in
from overt.recipe import Recipe


class Recording(NamedTuple):
    """Recorded work, and the memory that it reads from and writes to."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Any


class RecordedPreparation:
    """Does what `prepare(batch)` does by replaying a recording of it, one for each kind of shapes.

    Called on one stream, on which the replays follow each other.
    """

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        self.prepare = prepare
        self.seen: dict[tuple[object, ...], int] = {}
        self.recordings: dict[tuple[object, ...], Recording] = {}

    def __call__(self, batch: Any) -> Any:
        inputs = list(tensors_in(batch))
        work = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        recording = self.recordings.get(work)
        if recording is None:
            self.seen[work] = self.seen.get(work, 0) + 1
            if self.seen[work] <= WARM_UP or len(self.recordings) == MOST:
                return self.prepare(batch)
            recording = self.recordings[work] = self.record(batch)
        torch._foreach_copy_(recording.inputs, inputs)
        recording.graph.replay()
        # The next replay overwrites what this one has made, and the step may not have read it yet.
        return map_tensors(recording.output, Tensor.clone)

    def record(self, batch: Any) -> Recording:
        held = map_tensors(batch, Tensor.clone)
        graph = torch.cuda.CUDAGraph()
        # Only this thread is watched: the one that pins the loader's batches may go on.
        with torch.cuda.graph(
            graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
        ):
            output = self.prepare(held)
        return Recording(graph, list(tensors_in(held)), output)


class Transfer:
    """Returns batches on the device as the loss takes them, without waiting for the copy."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        records: bool = False,  # whether the run uses CUDA graphs
    ) -> None:
        self.device = device
        self.on_device: Callable[[Any], Any] = recipe.on_device
        self.beside: torch.cuda.Stream | None = None
        if device.type == "cuda" and recipe.prepares_beside_step:
            # Before the step: the host may wait for it.
            self.beside = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            if records and recipe.prepares_replayably:
                self.on_device = RecordedPreparation(recipe.on_device)
        self.last: torch.cuda.Event | None = None  # where the batch before was handed over

    def __call__(self, batch: Any) -> Any:
        if self.beside is None:
            return self.prepared(batch)
        step = torch.cuda.current_stream(self.device)
        # What came before the pass that is running now is finished, that pass is not.
        self.beside.wait_event(self.last or step.record_event())
        with torch.cuda.stream(self.beside):
            batch = self.prepared(batch)
        step.wait_stream(self.beside)
        for tensor in tensors_in(batch):
            tensor.record_stream(step)  # its memory is not used again while the step reads it
        self.last = step.record_event()
        return batch

    def prepared(self, batch: Any) -> Any:
        if self.device.type != "cpu":
            early = self.device.type == "cuda"  # elsewhere memory is not pinned
            batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=early))
        return self.on_device(batch)
