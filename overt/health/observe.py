"""What is looked at only when a log line is due: norms and histograms of the model, its FLOPs.

Everything here is off unless the section `logging` asks for it, and costs nothing between.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from overt.checkpoint import random_state
from overt.distributed import get_world_size, sum_over_processes
from overt.health.flops import count_flops, peak_tflops
from overt.run.console import Rates

if TYPE_CHECKING:
    from overt.engine.trainer import Trainer


class Observer:
    """Called by the trainer at three places, on every process."""

    def __init__(self) -> None:
        self.norms: tuple[list[str], Tensor] | None = None  # names, (2, names) on the device
        self.flops: int | None = None  # of one step on this process

    def gradients(self, trainer: Trainer) -> None:
        """While the gradients of the coming step are there, whole and not yet clipped."""
        settings, step = trainer.config.logging, trainer.state.step + 1
        is_last = step == trainer.total_steps
        if settings.norms_depth is not None and (is_last or step % settings.every_steps == 0):
            self.norms = module_norms(trainer.model, settings.norms_depth)
        every = settings.histograms_every_steps
        if every is not None and (is_last or step % every == 0):
            with trainer.meter.pause():
                trainer.logger.log_model_gradients(trainer.model, step)
                trainer.logger.log_model_weights(trainer.model, step)

    def before_log(self, trainer: Trainer) -> None:
        """While the last step can still be run once more."""
        if not trainer.config.logging.model_flops or self.flops is not None:
            return
        verdict = trainer.guard.pending
        if verdict is None:
            return
        with (
            trainer.meter.pause(),
            random_state.undisturbed(),
            trainer.bare(trainer.model) as model,
        ):
            self.flops = count_flops(model, partial(trainer.replay, verdict=verdict))
        if trainer.device.type == "cuda":  # the memory of this pass is not the run's
            torch.cuda.reset_peak_memory_stats(trainer.device)

    def numbers(self, trainer: Trainer, rates: Rates) -> dict[str, float]:
        """What was found, and how busy the machine is, under whole names."""
        found: dict[str, float] = {}
        if self.norms is not None:
            names, norms = self.norms
            gradients, weights = norms.tolist()  # the host has caught up: the losses were read
            for kind, values in (("gradient_norm", gradients), ("weight_norm", weights)):
                found |= {f"{kind}/{name}": one for name, one in zip(names, values, strict=True)}
            self.norms = None
        if self.flops is not None and math.isfinite(rates.seconds_per_step):
            found["train/tflops_per_second"] = self.flops / rates.seconds_per_step / 1e12
            if trainer.device.type == "cuda":
                name = torch.cuda.get_device_name(trainer.device)
                peak = peak_tflops(name, trainer.config.training.precision)
                if peak is not None:
                    found["train/flops_utilization"] = found["train/tflops_per_second"] / peak
        if trainer.config.logging.system_metrics:
            found |= trainer.logger.system_metrics()
        return found


@torch.no_grad()
def module_norms(model: nn.Module, depth: int) -> tuple[list[str], Tensor]:
    """L2 norms of the gradients and weights of each module `depth` names deep: names, (2, names).

    Stays on the device. Sharded tensors are added up over the processes, all in one reduction;
    every process must call this.
    """
    named = [(name, one) for name, one in model.named_parameters() if one.grad is not None]
    if not named:
        return [], torch.zeros(2, 0)
    groups: dict[str, int] = {}
    places, copies = [], []
    for name, parameter in named:
        module = ".".join(name.split(".")[:depth])
        places.append(groups.setdefault(module, len(groups)))
        copies.append(_copies(parameter))
    gradients = torch._foreach_norm([_local(parameter.grad) for _, parameter in named])
    weights = torch._foreach_norm([_local(parameter) for _, parameter in named])
    squares = torch.stack([torch.stack(gradients), torch.stack(weights)]).double().square()
    if any(isinstance(parameter, DTensor) for _, parameter in named):
        # What several processes hold alike would be counted as often.
        squares = sum_over_processes(squares / squares.new_tensor(copies))
    sums = squares.new_zeros(2, len(groups))
    sums.index_add_(1, torch.tensor(places, device=sums.device), squares)
    return list(groups), sums.sqrt()


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "only parameters with a gradient are looked at"
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    return local


def _copies(tensor: Tensor) -> int:
    """How many processes hold the same values of a tensor."""
    if not isinstance(tensor, DTensor):
        return get_world_size()
    mesh = tensor.device_mesh
    shares = math.prod(
        mesh.size(place)
        for place, kind in enumerate(tensor.placements)
        if not isinstance(kind, Replicate)
    )
    return get_world_size() // shares
