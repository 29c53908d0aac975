"""Watching a run without waiting for the device: non-finite steps, and the numbers of an interval.

A step with NaN or Inf never touches the weights. That is decided on the device; the host learns of
it one step later, when the answer has long arrived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from overt.distributed import World, is_main_process, sum_over_processes
from overt.engine.loader import Group
from overt.recipe import StepOutput


def poison_if_not_finite(total: Tensor) -> Tensor:
    """The loss itself, or NaN throughout its gradient where it is not finite.

    A NaN survives the sum over processes, so that all of them see it in the gradient's norm and
    decide alike, with no communication of its own.
    """
    value = total.detach()
    return total * (value - value + 1)  # Inf - Inf and NaN - NaN are NaN


@dataclass
class Verdict:
    """A step whose outcome the host has not read yet."""

    step: int
    group: Group
    counts: dict[str, Tensor]
    applied: Tensor  # () 1 where the update was made, 0 where it was skipped; on the host
    own_loss: Tensor  # () this process's share of the loss; on the host
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

    def protect(self, optimizer: torch.optim.Optimizer, grad_norm: Tensor) -> Tensor:
        """Make the coming `optimizer.step()` do nothing unless `grad_norm` is finite.

        Returns 1 or 0, a scalar on the device. Fused optimizers take the flag into their kernel;
        for others on CUDA the host has to read it, which costs a wait.
        """
        applied = (grad_norm - grad_norm == 0).to(torch.float32)  # finite, and not NaN
        if getattr(optimizer, "_step_supports_amp_scaling", False) and self.device.type == "cuda":
            optimizer.grad_scale = None  # type: ignore[attr-defined]
            optimizer.found_inf = 1.0 - applied  # type: ignore[attr-defined]
        elif not applied:  # on the CPU, reading costs nothing
            # Without gradients an optimizer changes neither weights nor momenta.
            optimizer.zero_grad(set_to_none=True)
        return applied

    def remember(
        self, step: int, group: Group, counts: dict[str, Tensor], applied: Tensor, own_loss: Tensor
    ) -> None:
        """Send the outcome on its way to the host."""
        arrived = None
        if self.device.type == "cuda":
            pair = torch.stack([applied, own_loss.to(torch.float32)])
            host = torch.empty(2, pin_memory=True).copy_(pair, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            applied, own_loss = host[0], host[1]
        self.pending = Verdict(step, group, counts, applied, own_loss, arrived)

    def take(self) -> Verdict | None:
        """The step that is still open, if any; it is then the caller's."""
        verdict, self.pending = self.pending, None
        return verdict


class Interval:
    """Sums of the steps since the last log line: on the device, reduced and read only there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []
        self.sums = torch.zeros(0, dtype=torch.float64, device=device)
        self.steps = torch.zeros((), dtype=torch.float64, device=device)
        self.zero = torch.zeros((), device=device)
        self.counts_norm = is_main_process()

    def add(self, outputs: list[StepOutput], applied: Tensor, grad_norm: Tensor) -> Tensor:
        """Add this process's share of one step; a skipped step does not count. Its loss."""
        names = ["loss", *outputs[0].losses, *outputs[0].metrics, "grad_norm"]
        if names != self.names:
            if self.names:
                raise ValueError(f"the step's numbers are {names}, before they were {self.names}")
            self.names = names
            self.sums = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        # The norm is the same on every process and for all micro-batches: it counts once.
        norm = grad_norm if self.counts_norm else self.zero
        total = torch.stack([*_numbers(outputs[0]), norm]).detach()
        for output in outputs[1:]:
            total += torch.stack([*_numbers(output), self.zero]).detach()
        self.sums += torch.where(applied > 0, total, 0.0)
        self.steps += applied
        return total[0]

    def totals(self) -> tuple[dict[str, float], float]:
        """Sums over all processes, and the number of steps. Every process must call this."""
        sums = dict(zip(self.names, sum_over_processes(self.sums.clone()).tolist(), strict=True))
        return sums, float(self.steps)

    def restore(self, sums: dict[str, float], steps: float, world: World) -> None:
        """Go on with the totals of an earlier session; the main process carries them."""
        self.names = list(sums)
        values = list(sums.values()) if world.is_main else [0.0] * len(sums)
        self.sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.steps = torch.tensor(steps, dtype=torch.float64, device=self.device)

    def reset(self) -> None:
        self.sums.zero_()
        self.steps.zero_()


def _numbers(output: StepOutput) -> list[Tensor]:
    return [output.total, *output.losses.values(), *output.metrics.values()]


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
    return {tensor.grad_fn for tensor in _tensors(value) if tensor.grad_fn is not None}


def _is_finite(value: object) -> bool:
    return all(
        bool(torch.isfinite(tensor).all())
        for tensor in _tensors(value)
        if tensor.is_floating_point()
    )


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])
