"""Watching a run without waiting for the device: non-finite steps, and the numbers of an interval.

A step with NaN or Inf never touches the weights. That is decided on the device; the host learns of
it one step later, when the answer has long arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from overt.distributed import (
    World,
    get_rank,
    get_world_size,
    is_main_process,
    sum_over_processes,
)
from overt.engine.loader import Group
from overt.nested import tensors_in
from overt.recipe import StepOutput


def poison_if_not_finite(total: Tensor) -> Tensor:
    """The loss itself, or NaN throughout its gradient where it is not finite.

    A NaN survives the sum over processes, so that all of them see it in the gradient's norm and
    decide alike, with no communication of its own.
    """
    value = total.detach()
    if value.device.type == "cpu":  # there reading costs nothing
        return total if math.isfinite(value) else total * math.nan
    return total * (value - value + 1)  # Inf - Inf and NaN - NaN are NaN


@dataclass
class Verdict:
    """A step whose outcome the host has not read yet."""

    step: int
    group: Group
    counts: dict[str, Tensor]
    applied: Tensor  # () 1 where the update was made, 0 where it was skipped; on the host
    own_loss: Tensor  # () this process's share of the loss; on the host
    spiked: Tensor  # () 1 where the loss was finite but a spike; on the host
    arrived: torch.cuda.Event | None

    def was_applied(self) -> bool:
        """Whether the update was made. One step later this waits for nothing."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.applied)


class FiniteGuard:
    """Keeps non-finite gradients away from the weights, and remembers what to read later."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pending: Verdict | None = None
        self.one, self.zero = torch.ones(()), torch.zeros(())
        self.spiked = self.nothing = torch.zeros((), device=device)

    def protect(
        self,
        optimizer: torch.optim.Optimizer,
        grad_norm: Tensor,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Make the coming `optimizer.step()` do nothing unless `grad_norm` is finite.

        Nor where `allowed`, a scalar on the device, is false: the loss is a spike. Returns 1 or 0,
        a scalar on the device. Fused optimizers take the flag into their kernel; for others on CUDA
        the host has to read it, which costs a wait.
        """
        self.spiked = self.nothing
        if self.device.type == "cpu":  # there reading costs nothing
            if math.isfinite(grad_norm):
                if allowed is None or allowed:
                    return self.one
                self.spiked = self.one
            # Without gradients an optimizer changes neither weights nor momenta.
            optimizer.zero_grad(set_to_none=True)
            return self.zero
        applied = (grad_norm - grad_norm == 0).to(torch.float32)  # finite, and not NaN
        if allowed is not None:
            self.spiked = applied * ~allowed
            applied = applied * allowed
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.grad_scale = None  # type: ignore[attr-defined]
            optimizer.found_inf = 1.0 - applied  # type: ignore[attr-defined]
        elif not applied:
            optimizer.zero_grad(set_to_none=True)
        return applied

    def remember(
        self,
        step: int,
        group: Group,
        counts: dict[str, Tensor],
        applied: Tensor,
        outputs: list[StepOutput],
    ) -> None:
        """Send the outcome on its way to the host."""
        own_loss = outputs[0].total.detach()
        for output in outputs[1:]:
            own_loss = own_loss + output.total.detach()
        arrived, spiked = None, self.spiked
        if self.device.type == "cuda":
            three = torch.stack([applied, own_loss.to(torch.float32), spiked])
            host = torch.empty(3, pin_memory=True).copy_(three, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            applied, own_loss, spiked = host[0], host[1], host[2]
        self.pending = Verdict(step, group, counts, applied, own_loss, spiked, arrived)

    def take(self) -> Verdict | None:
        """The step that is still open, if any; it is then the caller's."""
        verdict, self.pending = self.pending, None
        return verdict


class Totals(NamedTuple):
    """The numbers of an interval, over all processes."""

    sums: dict[str, float]
    steps: float  # that were made
    losses: list[float]  # of every step; NaN where it was skipped
    said: list[list[float]]  # what each process said of itself, in the order of ranks


class Interval:
    """Sums of the steps since the last log line: kept on the device, added up and read only there.

    A step leaves its numbers as they are, since every operation on the device costs the host time.
    """

    LONGEST = 1024  # steps whose numbers are kept one by one

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []
        self.rows: list[list[Tensor]] = []  # of a step: applied, norm, numbers of each micro-batch
        self.sums: list[float] = []
        self.losses: list[float] = []  # this process's share, step by step
        self.steps = 0.0
        self.restored = False  # from a checkpoint, and no step made since

    def add(self, outputs: list[StepOutput], applied: Tensor, grad_norm: Tensor) -> None:
        """Take this process's share of one step; a skipped step does not count."""
        names = ["loss", *outputs[0].losses, *outputs[0].metrics, "grad_norm"]
        if names != self.names:
            if self.names and not self.restored:
                raise ValueError(f"the step's numbers are {names}, before they were {self.names}")
            # Of a checkpoint whose version measured something else no sum can be carried on.
            self.names = names
            self.reset()
        self.restored = False
        row = [applied, grad_norm]
        for output in outputs:
            row += [output.total.detach()]
            row += [term.detach() for term in output.losses.values()]
            row += [value.detach() for value in output.metrics.values()]
        self.rows.append(row)
        if len(self.rows) >= self.LONGEST:
            self._settle()

    def totals(self, said: Sequence[float] = ()) -> Totals:
        """Totals over all processes, in one reduction. Every process must call this."""
        self._settle()
        rank, size = get_rank(), get_world_size()
        # Each process has places of its own for what it says: the sum then holds them all.
        places = [0.0] * (rank * len(said)) + [*said] + [0.0] * ((size - rank - 1) * len(said))
        own = torch.tensor(
            [*self.sums, *self.losses, *places], dtype=torch.float64, device=self.device
        )
        packed = sum_over_processes(own).tolist()
        sums, packed = packed[: len(self.sums)], packed[len(self.sums) :]
        losses, packed = packed[: len(self.losses)], packed[len(self.losses) :]
        width = len(said)
        by_rank = [packed[place * width : (place + 1) * width] for place in range(size)]
        return Totals(dict(zip(self.names, sums, strict=True)), self.steps, losses, by_rank)

    def restore(
        self, sums: dict[str, float], steps: float, losses: Sequence[float], world: World
    ) -> None:
        """Go on with the totals of an earlier session; the main process carries them."""
        self.names = list(sums)
        self.sums = list(sums.values()) if world.is_main else [0.0] * len(sums)
        self.losses = list(losses) if world.is_main else [0.0] * len(losses)
        self.steps = steps
        self.restored = True

    def reset(self) -> None:
        self.rows = []
        self.sums, self.losses, self.steps = [0.0] * len(self.names), [], 0.0

    def _settle(self) -> None:
        """Read what is still on the device, in one go, and add it up in the order of the steps."""
        if not self.rows:
            return
        numbers = torch.stack([number for row in self.rows for number in row]).tolist()
        width, begin = len(self.names) - 1, 0
        for row in self.rows:
            applied, norm, *shares = numbers[begin : begin + len(row)]
            begin += len(row)
            self.losses.append(sum(shares[::width]) if applied else math.nan)
            if not applied:
                continue
            self.steps += 1.0
            for place, share in enumerate(shares):
                self.sums[place % width] += share
            # The same on every process and for all micro-batches: it counts once.
            self.sums[-1] += norm if is_main_process() else 0.0
        self.rows = []


def idle_parameters(model: nn.Module) -> str | None:
    """After a backward pass: a message about parameters that got no gradient, if there are any."""
    idle = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if not idle:
        return None
    return (
        f"{len(idle)} parameter(s) got no gradient, first {', '.join(idle[:5])}: the loss does not "
        "depend on them, and DistributedDataParallel would wait for them for ever. Give them a "
        "loss, or set requires_grad_(False)."
    )


def first_nonfinite_module(model: nn.Module, run: Callable[[], Tensor]) -> str | None:
    """Run a batch once more and name the first module that turned finite numbers into NaN or Inf.

    `run` computes the loss. Neither gradients nor buffers of the model are changed. None where
    everything was finite this time.
    """
    watch = _Watch()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        for name, module in model.named_modules():
            watch.follow(name, module)
        with torch.enable_grad():
            loss = run()
        if watch.culprit is None and torch.isfinite(loss):
            watch.follow_gradients(loss)
            parameters = [value for value in model.parameters() if value.requires_grad]
            torch.autograd.grad(loss, parameters, allow_unused=True)
        elif watch.culprit is None:
            watch.culprit = watch.bad_input or "the loss, after the model's last module"
    finally:
        for handle in watch.handles:
            handle.remove()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return watch.culprit


class _Watch:
    """Hooks on modules for the forward pass, on the nodes they made for the backward pass.

    Not torch's backward hooks of modules: these forbid operations in place, and do not see a
    gradient that only reaches a parameter.
    """

    def __init__(self) -> None:
        self.culprit: str | None = None
        self.bad_input: str | None = None
        self.handles: list[RemovableHandle] = []
        self.maker: dict[Node, str] = {}  # the innermost module that made a node of the graph
        self.borders: list[set[Node]] = []  # of the modules now at work: what made their inputs

    def follow(self, name: str, module: nn.Module) -> None:
        label, kind = name or "the model", type(module).__name__

        def enter(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not self.bad_input and not _is_finite((arguments, named)):
                self.bad_input = f"the input of {label} ({kind}), before any module"
            self.borders.append(_makers((arguments, named)))

        def leave(
            _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: object
        ) -> None:
            for node in _graph(_makers(output), border=self.borders.pop()):
                self.maker.setdefault(node, f"{label} ({kind}, backward)")
            if self.culprit is None and _is_finite((arguments, named)) and not _is_finite(output):
                self.culprit = f"{label} ({kind}, forward)"

        self.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self.handles.append(module.register_forward_hook(leave, with_kwargs=True))

    def follow_gradients(self, loss: Tensor) -> None:
        def check(maker: str) -> Callable[..., None]:
            def hook(outgoing: object, incoming: object) -> None:
                if self.culprit is None and _is_finite(incoming) and not _is_finite(outgoing):
                    self.culprit = maker

            return hook

        for node in _graph(_makers(loss), border=set()):
            maker = self.maker.get(node, "the gradient of the loss, after the model's last module")
            self.handles.append(node.register_hook(check(maker)))


def _graph(nodes: set[Node], border: set[Node]) -> set[Node]:
    """All nodes of the autograd graph below `nodes`, these included, up to the border."""
    found: set[Node] = set()
    todo = list(nodes - border)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += {below for below, _ in node.next_functions if below is not None} - border
    return found


def _makers(value: object) -> set[Node]:
    return {tensor.grad_fn for tensor in tensors_in(value) if tensor.grad_fn is not None}


def _is_finite(value: object) -> bool:
    return all(
        bool(torch.isfinite(tensor).all())
        for tensor in tensors_in(value)
        if tensor.is_floating_point()
    )
