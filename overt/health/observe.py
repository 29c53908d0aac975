"""What is measured only when a log line is due: norms and histograms of the model, its FLOPs.

Everything here is off unless the section `logging` asks for it, and costs nothing in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from overt.config.schema import LoggingSection
from overt.distributed import all_reduce_sum, get_world_size
from overt.health.flops import peak_tflops
from overt.ops.float64 import exact


class Observer:
    """Measures a model while its gradients are there; called on every rank."""

    def __init__(
        self,
        settings: LoggingSection,
        total_steps: int,
        log_histograms: Callable[[nn.Module, int], None],
    ) -> None:
        self.settings, self.total_steps = settings, total_steps
        self.log_histograms = log_histograms
        # Names, (2, names) on the device, of each update of the last step that was measured.
        self.norms: list[tuple[list[str], Tensor]] = []
        self.norms_step = 0
        self.flops: int | None = None  # of one step on this rank

    def see_gradients(self, model: nn.Module, step: int) -> None:
        """Measure the gradients of `step`, complete and not yet clipped.

        A step of several updates calls this before each of them.
        """
        if self.settings.norms_depth is not None and self._is_due(step, self.settings.every_steps):
            if step != self.norms_step:
                self.norms, self.norms_step = [], step
            self.norms.append(module_norms(model, self.settings.norms_depth))
        if self.has_histograms(step):
            self.log_histograms(model, step)

    def has_histograms(self, step: int) -> bool:
        """Return whether histograms of `step` are logged, which is slow."""
        every_steps = self.settings.histograms_every_steps
        return every_steps is not None and self._is_due(step, every_steps)

    @property
    def wants_flops(self) -> bool:
        return self.settings.model_flops and self.flops is None

    def numbers(
        self, seconds_per_step: float, device: torch.device, precision: str
    ) -> dict[str, float]:
        """Return what was measured since the last log line, under full names."""
        numbers: dict[str, float] = {}
        # Of a module in several updates the first one counts, as for its histograms.
        for names, norms in reversed(self.norms):
            gradients, weights = norms.tolist()  # the host has caught up: the losses were read
            for kind, values in (("gradient_norm", gradients), ("weight_norm", weights)):
                numbers |= {
                    f"{kind}/{name}": norm for name, norm in zip(names, values, strict=True)
                }
        self.norms = []
        if self.flops is not None and math.isfinite(seconds_per_step):
            numbers["train/tflops_per_second"] = self.flops / seconds_per_step / 1e12
            if device.type == "cuda":
                peak = peak_tflops(torch.cuda.get_device_name(device), precision)
                if peak is not None:
                    numbers["train/flops_utilization"] = numbers["train/tflops_per_second"] / peak
        return numbers

    def _is_due(self, step: int, every_steps: int) -> bool:
        return step == self.total_steps or step % every_steps == 0


@torch.no_grad()
def module_norms(model: nn.Module, depth: int) -> tuple[list[str], Tensor]:
    """L2 norms of the gradients and weights of each module `depth` names deep: names, (2, names).

    Stays on the device. Sharded tensors are summed over the ranks, all in one reduction; every rank
    must call this.
    """
    named = [pair for pair in model.named_parameters() if pair[1].grad is not None]
    if not named:
        return [], torch.zeros(2, 0)
    modules: dict[str, int] = {}
    owners, replicas = [], []
    for name, parameter in named:
        module = ".".join(name.split(".")[:depth])
        owners.append(modules.setdefault(module, len(modules)))
        replicas.append(_replicas(parameter))
    gradients = torch._foreach_norm([_local(parameter.grad) for _, parameter in named])
    weights = torch._foreach_norm([_local(parameter) for _, parameter in named])
    squares = exact(torch.stack([torch.stack(gradients), torch.stack(weights)])).square()
    if any(isinstance(parameter, DTensor) for _, parameter in named):
        # Replicated values would be counted once per rank.
        squares = all_reduce_sum(squares / squares.new_tensor(replicas))
    sums = squares.new_zeros(2, len(modules))
    sums.index_add_(1, torch.tensor(owners, device=sums.device), squares)
    return list(modules), sums.sqrt()


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "only parameters with a gradient are looked at"
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    return local


def _replicas(tensor: Tensor) -> int:
    """Return how many ranks hold the same values of a tensor."""
    if not isinstance(tensor, DTensor):
        return get_world_size()
    mesh = tensor.device_mesh
    shards = math.prod(
        mesh.size(dimension)
        for dimension, placement in enumerate(tensor.placements)
        if not isinstance(placement, Replicate)
    )
    return get_world_size() // shards
