"""Watching a run without waiting for the device: non-finite steps, and the numbers of an interval.

A step with NaN or Inf never touches the weights. That is decided on the device; the host learns of
it one step later, when the answer has long arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from overt.distributed import World, get_world_size, sum_over_processes
from overt.engine.loader import Group
from overt.recipe import StepOutput


def poison_if_not_finite(total: Tensor) -> Tensor:
    """The loss itself, or NaN throughout its gradient where it is not finite.

    A NaN survives the sum over processes, so that all of them see it in the gradient's norm and
    decide alike, with no communication of its own.
    """
    return total * torch.where(torch.isfinite(total.detach()), 1.0, torch.nan)


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
        applied = torch.isfinite(grad_norm).to(torch.float32)
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

    def add(self, outputs: list[StepOutput], applied: Tensor, grad_norm: Tensor | None) -> Tensor:
        """Add this process's share of one step; a skipped step does not count. Its loss."""
        names = ["loss", *outputs[0].losses, *outputs[0].metrics]
        rows = [
            torch.stack([output.total, *output.losses.values(), *output.metrics.values()])
            for output in outputs
        ]
        shares = (rows[0] if len(rows) == 1 else torch.stack(rows).sum(0)).detach()
        own_loss = shares[0]
        if grad_norm is not None:  # the same on every process: each adds its part
            names.append("grad_norm")
            shares = torch.cat([shares, grad_norm.detach()[None] / get_world_size()])
        if names != self.names:
            if self.names:
                raise ValueError(f"the step's numbers are {names}, before they were {self.names}")
            self.names = names
            self.sums = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        self.sums += torch.where(applied > 0, shares, 0.0)
        self.steps += applied
        return own_loss

    def totals(self) -> tuple[dict[str, float], float]:
        """Sums over all processes, and the number of steps. Every process must call this."""
        sums = sum_over_processes(self.sums.clone())
        return dict(zip(self.names, sums.tolist(), strict=True)), float(self.steps)

    def restore(self, sums: dict[str, float], steps: float, world: World) -> None:
        """Go on with the totals of an earlier session; the main process carries them."""
        self.names = list(sums)
        values = list(sums.values()) if world.is_main else [0.0] * len(sums)
        self.sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.steps = torch.tensor(steps, dtype=torch.float64, device=self.device)

    def reset(self) -> None:
        self.sums.zero_()
        self.steps.zero_()


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


def first_nonfinite_module(model: nn.Module, run: Callable[[], Tensor]) -> str:
    """Run a batch once more and name the first module that turned finite input into NaN or Inf.

    `run` computes the loss. Gradients are computed apart and not added to those of the parameters.
    """
    culprits: list[str] = []

    def watch(name: str, direction: str) -> Callable[..., None]:
        def hook(module: nn.Module, first: object, second: object) -> None:
            # Forward hooks get (inputs, outputs); backward hooks the gradients of the same two,
            # of which those of the outputs come in and those of the inputs go out.
            before, after = (first, second) if direction == "forward" else (second, first)
            if not culprits and _is_finite(before) and not _is_finite(after):
                culprits.append(f"{name or 'the model'} ({type(module).__name__}, {direction})")

        return hook

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(watch(name, "forward")))
        handles.append(module.register_full_backward_hook(watch(name, "backward")))
    try:
        with torch.enable_grad():
            loss = run()
            parameters = [value for value in model.parameters() if value.requires_grad]
            if not culprits and torch.isfinite(loss):
                torch.autograd.grad(loss, parameters, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return culprits[0] if culprits else "the loss, after the model's last module"


def _is_finite(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_is_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_finite(item) for item in value)
    return True
