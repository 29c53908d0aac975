"""Non-finite steps never touch the weights.

That is decided on the device; the host reads the outcome one step later, when it has long arrived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from overt.engine.loader import StepBatch
from overt.engine.optimizer import members
from overt.recipe import StepOutput
from overt.run.events import SkippedStep


def poison_if_nonfinite(total: Tensor) -> Tensor:
    """Return the loss, or NaN throughout its gradient where the loss is non-finite.

    NaN survives the sum over ranks, so that all see it in the gradient norm and decide alike, with
    no communication.
    """
    value = total.detach()
    if value.device.type == "cpu":  # reading costs nothing there
        return total if math.isfinite(value) else total * math.nan
    return total * (value - value + 1)  # Inf - Inf and NaN - NaN are NaN


@dataclass
class Verdict:
    """A step whose outcome the host has not read yet."""

    step: int
    batch: StepBatch
    counts: dict[str, Tensor]
    applied: Tensor  # () 1 where the update was made, 0 where it was skipped; on the host
    own_loss: Tensor  # () this rank's part of the loss; on the host
    spiked: Tensor  # () 1 where the loss was finite but a spike; on the host
    arrived: torch.cuda.Event | None

    def was_applied(self) -> bool:
        """Whether the update was made. One step later this waits for nothing."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.applied)

    def event(self, module: str | None, searched: bool, spike_limit: float) -> SkippedStep:
        """Describe a skipped step as seen from this rank."""
        return SkippedStep(
            self.step,
            float(self.own_loss),
            self.batch.sample_ids,
            module,
            searched,
            spike_limit if bool(self.spiked) else None,
        )


class FiniteGuard:
    """Keeps non-finite gradients away from the weights, and remembers what to read later."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pending: Verdict | None = None
        self._updates: list[Tensor] = []  # outcomes of the updates of the step that is running
        self.one, self.zero = torch.ones(()), torch.zeros(())
        self.spiked = self.nothing = torch.zeros((), device=device)

    def protect(
        self,
        optimizer: torch.optim.Optimizer,
        grad_norm: Tensor,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Make the coming `optimizer.step()` do nothing unless `grad_norm` is finite.

        Nor if `allowed`, a scalar on the device, is false: the loss is a spike. Returns 1 or 0,
        a scalar on the device. Fused optimizers take the flag into their kernel; for others on CUDA
        the host has to read it, which costs a wait. Several optimizers step together or not at all.
        """
        applied = self._protect(optimizer, grad_norm, allowed)
        self._updates.append(applied)
        return applied

    def _protect(
        self, optimizer: torch.optim.Optimizer, grad_norm: Tensor, allowed: Tensor | None
    ) -> Tensor:
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
        for member in members(optimizer):
            if getattr(member, "_step_supports_amp_scaling", False):
                member.grad_scale = None  # type: ignore[attr-defined]
                member.found_inf = 1.0 - applied  # type: ignore[attr-defined]
            elif not applied:
                member.zero_grad(set_to_none=True)
        return applied

    def all_applied(self, applied: Tensor) -> Tensor:
        """Return the outcome of a step: as given, or where it made several updates, of all."""
        updates, self._updates = self._updates, []
        return applied if len(updates) < 2 else torch.stack([applied, *updates]).amin()

    def remember(
        self,
        step: int,
        batch: StepBatch,
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
        self.pending = Verdict(step, batch, counts, applied, own_loss, spiked, arrived)

    def take(self) -> Verdict | None:
        """Hand over the step whose outcome is still unread, if any."""
        verdict, self.pending = self.pending, None
        return verdict
