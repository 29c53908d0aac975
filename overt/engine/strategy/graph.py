"""A micro-batch's forward and backward pass recorded once as a CUDA graph, and replayed.

A step of many small kernels waits for the host that launches them one by one; a replay is a single
launch. Worth it where shapes do not change from step to step.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from overt.errors import ConfigError
from overt.nested import map_tensors, tensors_in
from overt.recipe import Recipe, StepOutput

MOST = 4  # recordings: short last batches, and steps that see smaller images
WARM_UP = 3  # passes before the recording: lazy set-up and the choice of algorithms happen there

Pass = Callable[[Any, dict[str, Tensor]], StepOutput]


@dataclass
class Recording:
    """A recorded pass, and the memory that it reads from and writes to."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    gradients: list[Tensor | None]
    output: StepOutput
    carry: dict[str, Tensor]
    numbers: Tensor  # those of the output, all in one


class GraphedPass:
    """Does what `run(batch, counts)` does, its backward pass included, by replaying a recording.

    Work, of a `variant` and of the batch's shapes, that comes `WARM_UP` times is recorded, up to
    `MOST` kinds of it; the passes before, and other work, run eagerly. Gradients land in the
    parameters' `grad`, added to what is there.
    """

    def __init__(
        self,
        run: Pass,
        parameters: list[nn.Parameter],
        give_up: Callable[[str], None] | None = None,
    ) -> None:
        self.run, self.parameters = run, parameters
        self.give_up = give_up  # told why a pass cannot be recorded; such passes run eagerly
        self.problem: str | None = None
        self.seen: dict[tuple[object, ...], int] = {}
        self.recordings: dict[tuple[object, ...], Recording] = {}
        # Of the recordings, and of the passes before them.
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # One for all: what a pass needs for itself, the next kind of pass uses again. So a replay
        # may overwrite what another recording has made, but never its own inputs.
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Any, counts: dict[str, Tensor], variant: int = 1) -> StepOutput:
        if self.problem is not None:
            return self.run(batch, counts)
        inputs = list(tensors_in((batch, counts)))
        work = (variant, *((tensor.shape, tensor.dtype) for tensor in inputs))
        recording = self.recordings.get(work)
        if recording is None:
            if len(self.recordings) == MOST:
                return self.run(batch, counts)
            if self.seen.get(work, 0) < WARM_UP:
                self.seen[work] = self.seen.get(work, 0) + 1
                return self._warm_up(batch, counts, is_last=self.seen[work] == WARM_UP)
            recording = self._try_to_record(batch, counts)
            if recording is None:
                return self.run(batch, counts)
            self.recordings[work] = recording
        self._keep_earlier()
        torch._foreach_copy_(recording.inputs, inputs)
        recording.graph.replay()
        self._hand_over(recording)
        # The next replay overwrites what this one has made; one copy is cheaper than dozens.
        copies = iter(recording.numbers.clone().unbind())
        numbers: StepOutput = map_tensors(recording.output, lambda _: next(copies))
        return replace(numbers, carry=map_tensors(recording.carry, Tensor.clone))

    def _warm_up(self, batch: Any, counts: dict[str, Tensor], is_last: bool) -> StepOutput:
        waits: list[str] = []
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if is_last and self.give_up is not None:
                with host_waits(waits):
                    output = self.run(batch, counts)
            else:
                output = self.run(batch, counts)
        torch.cuda.current_stream().wait_stream(self.stream)
        if waits:
            self._refuse(f"the host waits for the device in {waits[0]}")
        return output

    def _try_to_record(self, batch: Any, counts: dict[str, Tensor]) -> Recording | None:
        """Record the pass; None if that fails and `give_up` is told."""
        if self.give_up is None:
            return self._record(batch, counts)
        before = [parameter.grad for parameter in self.parameters]
        generator = torch.cuda.default_generators[self.stream.device_index]
        random = generator.clone_state()
        try:
            return self._record(batch, counts)
        except Exception as error:
            # A broken recording has run nothing on the device, but torch still takes it for one
            # under way: of the generator, and of the memory pool.
            generator.graphsafe_set_state(random)
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(self.stream.device_index, self.pool)
            for parameter, gradient in zip(self.parameters, before, strict=True):
                parameter.grad = gradient
            self._refuse(in_one_line(error))
            return None

    def _refuse(self, problem: str) -> None:
        assert self.give_up is not None
        self.problem = problem
        self.give_up(problem)

    def _record(self, batch: Any, counts: dict[str, Tensor]) -> Recording:
        held, held_counts = map_tensors((batch, counts), Tensor.clone)
        before = [parameter.grad for parameter in self.parameters]
        # Without gradients to add to, the recording makes its own, and each replay overwrites them.
        for parameter in self.parameters:
            parameter.grad = None
        gc.collect()
        torch.cuda.empty_cache()  # recordings have a separate memory pool
        graph = torch.cuda.CUDAGraph()
        # Only this thread is watched: the one that pins the loader's batches may go on.
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            output = map_tensors(self.run(held, held_counts), Tensor.detach)
            # Numbers are copied out in one launch; tensors for `after_step` one by one.
            carry, output = output.carry, replace(output, carry={})
            numbers = torch.stack(list(tensors_in(output)))
        gradients = [parameter.grad for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, before, strict=True):
            parameter.grad = gradient
        inputs = list(tensors_in((held, held_counts)))
        return Recording(graph, inputs, gradients, output, carry, numbers)

    def _keep_earlier(self) -> None:
        """Copy what an earlier micro-batch of this step has left where the replay may write."""
        written = {
            id(gradient)
            for recording in self.recordings.values()
            for gradient in recording.gradients
            if gradient is not None
        }
        for parameter in self.parameters:
            if parameter.grad is not None and id(parameter.grad) in written:
                parameter.grad = parameter.grad.clone()

    def _hand_over(self, recording: Recording) -> None:
        for parameter, gradient in zip(self.parameters, recording.gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient


@contextmanager
def host_waits(waits: list[str]) -> Iterator[None]:
    """Add to `waits` every line in which the host waits for the device: no recording has any."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for warning in caught:
        text = str(warning.message)
        if "called a synchronizing" in text:
            waits.append(f"{warning.filename}, line {warning.lineno}")
        elif "Synchronization debug mode" not in text:  # nobody asked for it
            warnings.warn_explicit(text, warning.category, warning.filename, warning.lineno)


def in_one_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no words'}"[:300]


def check_replayable(recipe: Recipe, device: torch.device) -> None:
    """Refuse `training.cuda_graph` where there is nothing to record."""
    if device.type != "cuda":
        raise ConfigError(
            f"training.cuda_graph=true with training.device={device.type}: CUDA graphs need CUDA; "
            "set training.cuda_graph=false"
        )
    replayable = recipe.replayable
    if isinstance(replayable, str):
        raise ConfigError(
            f"training.cuda_graph=true, but the pass cannot be replayed: {replayable}, or set "
            "training.cuda_graph=false"
        )
    if not replayable:
        raise ConfigError(
            f"training.cuda_graph=true, but {type(recipe).__qualname__} does not say that its loss "
            "can be replayed (replayable = True: it neither looks at values on the host nor at the "
            "step); set training.cuda_graph=false"
        )
