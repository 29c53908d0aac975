"""Parameter groups, the optimizer or optimizers, their learning rates and weight decay."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from overt.checkpoint.optimizer_state import remember_configured
from overt.config import import_target
from overt.config.schema import OptimizerSection
from overt.engine.optimizer_rules import Assignment, assign
from overt.errors import ConfigError, nearest
from overt.schedule import HierarchicalScheduler
from overt.schedule_section import build_schedule


class Optimizers(torch.optim.Optimizer):
    """Several optimizers over different parameters that work as one.

    Groups and state are those of its members, in one list and one dictionary, so that schedules,
    clipping, the loss scaler and checkpoints need not know how many there are. Each group names its
    class.
    """

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        groups = [group for member in members for group in member.param_groups]
        super().__init__([parameter for group in groups for parameter in group["params"]], {})
        self.members, self.param_groups = members, groups
        for member in members:
            self.state.update(member.state)  # that of Adagrad exists before its first step
            member.state = self.state  # no two members share a parameter, so one will do
            for group in member.param_groups:
                group["class"] = type(member).__name__

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step every member."""
        for member in self.members:
            member.step()


def members(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers that `optimizer` is made of; usually itself."""
    return optimizer.members if isinstance(optimizer, Optimizers) else [optimizer]


def parameters_of_each(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return how many parameters each class of optimizer steps."""
    counts: dict[str, int] = {}
    for member in members(optimizer):
        held = sum(value.numel() for group in member.param_groups for value in group["params"])
        counts[type(member).__name__] = counts.get(type(member).__name__, 0) + held
    return counts


def build_optimizer(
    section: OptimizerSection, model: nn.Module, groups: list[dict[str, Any]] | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer over all parameters that need a gradient, or the recipe's own groups.

    Groups carry their parameters' names, `lr_scale` (a factor of the learning rate) and `level`
    (which value of a hierarchical schedule is theirs). `optimizer.rules` may give some of the
    parameters another class; there is one class as a rule, and it is returned as it is.
    """
    if groups is None:
        groups = [{"params": [pair for pair in model.named_parameters() if pair[1].requires_grad]}]
    else:
        groups = [_checked_group(group) for group in groups]
    if not any(group["params"] for group in groups):
        raise ConfigError("the model has no parameter that needs a gradient")
    if section.decay_only_matrices:
        groups = [part for group in groups for part in _split_by_dimensions(group)]
    groups = [{"lr_scale": 1.0, "level": 0} | group for group in groups]
    optimizers = [_build_one(part, section.lr) for part in assign(section, model, groups)]
    optimizer = optimizers[0] if len(optimizers) == 1 else Optimizers(optimizers)
    decays = any(group["decays"] for group in optimizer.param_groups)
    if section.weight_decay_schedule is not None and not decays:
        raise ConfigError(
            f"optimizer.weight_decay_schedule with optimizer.weight_decay={section.weight_decay}: "
            "no parameter has weight decay that could follow it; set "
            "optimizer.weight_decay_schedule=null, or a weight decay above 0"
        )
    remember_configured(optimizer)
    return optimizer


def _checked_group(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group of a recipe; refused where it would not train as it seems to."""
    if "lr" in group:
        raise ConfigError(
            f"parameter_groups gives a group lr={group['lr']}, which the schedule replaces in "
            "every step; use lr_scale, a factor of optimizer.lr"
        )
    pairs = list(group.get("params", []))
    if not all(map(_is_named_parameter, pairs)):
        raise ConfigError(
            "parameter_groups returned a group whose params are not pairs of name and parameter; "
            "use model.named_parameters() instead of model.parameters()"
        )
    return {**group, "params": pairs}


def _is_named_parameter(pair: Any) -> bool:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    return is_pair and isinstance(pair[0], str) and isinstance(pair[1], Tensor)


def _build_one(part: Assignment, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of one class over its groups, or explain what it refuses."""
    kind = import_target(f"{part.key}._target_", part.target)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ConfigError(f"{part.key}._target_={part.target} is not a torch.optim.Optimizer")
    allowed = list(inspect.signature(kind).parameters)
    arguments = {"lr": lr, **part.arguments}
    if "weight_decay" in allowed:
        arguments.setdefault("weight_decay", part.weight_decay)
    else:
        _refuse_weight_decay(part)
    for name in arguments:
        if name not in allowed:
            raise ConfigError(
                f"{part.key}.arguments.{name}: {part.target} has no such "
                f"argument{nearest(name, allowed)}; it has {', '.join(allowed)}. Remove an "
                f"argument of another class with ~{part.key}.arguments.{name}"
            )
    known = ["params", "lr_scale", "level", "decay_scale", "weight_decay", *allowed]
    for name in (name for group in part.groups for name in group):
        if name not in known:
            raise ConfigError(
                f"parameter_groups gives a group {name}, which neither a group nor "
                f"{part.target} has{nearest(name, known)}; a group has params, lr_scale, level, "
                "weight_decay and arguments of the class"
            )
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ConfigError(
            f"{part.key}._target_={part.target} computes the loss several times in one step "
            "(closure), which a training step does not offer; choose another class"
        )
    if issubclass(kind, torch.optim.SparseAdam):
        raise ConfigError(
            f"{part.key}._target_={part.target} takes sparse gradients only, and those of a "
            "training step are dense; choose another class, such as torch.optim.AdamW"
        )
    if "fused" in allowed and "foreach" not in arguments and _can_fuse(kind, part):
        arguments.setdefault("fused", True)  # one kernel for all parameters
    try:
        optimizer: torch.optim.Optimizer = kind(part.groups, **arguments)
    except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
        hint = ""
        if kind is torch.optim.Muon:
            hint = ". optimizer=muon gives Muon the matrices and AdamW the rest"
        raise ConfigError(f"{part.target} refuses its settings: {error}{hint}") from error
    for group in optimizer.param_groups:
        group["decays"] = group.get("weight_decay", 0.0) > 0
    return optimizer


def _can_fuse(kind: type, part: Assignment) -> bool:
    """Return whether torch has a fused kernel for these parameters: of shards, for Adam alone.

    None on MPS: nothing says that it takes the flag of a skipped step (`FiniteGuard`) there.
    """
    adam = issubclass(kind, torch.optim.Adam | torch.optim.AdamW)
    parameters = [parameter for group in part.groups for _, parameter in group["params"]]
    if any(parameter.device.type == "mps" for parameter in parameters):
        return False
    return adam or not any(isinstance(parameter, DTensor) for parameter in parameters)


def _refuse_weight_decay(part: Assignment) -> None:
    """Refuse weight decay for a class that has none, wherever it is set."""
    if part.weight_decay != 0:
        raise ConfigError(
            f"{part.key}.weight_decay={part.weight_decay}: {part.target} has no weight decay; set "
            f"{part.key}.weight_decay=0"
        )
    names = [group["params"][0][0] for group in part.groups if group.get("weight_decay", 0.0) != 0]
    if names:
        raise ConfigError(
            f"the recipe gives the parameter group of {names[0]} a weight decay, but {part.target} "
            "has none; choose another class"
        )


def _split_by_dimensions(group: dict[str, Any]) -> list[dict[str, Any]]:
    matrices = [pair for pair in group["params"] if pair[1].ndim >= 2]
    vectors = [pair for pair in group["params"] if pair[1].ndim < 2]
    parts = [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


def clip_gradients(parameters: list[nn.Parameter], limit: float | None) -> Tensor:
    """Clip the norm of all gradients to `limit`; return the norm before clipping.

    What torch.nn.utils.clip_grad_norm_ computes, without sorting tensors by device and type.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm: Tensor
    if not gradients or isinstance(gradients[0], DTensor):
        norm = get_total_norm(gradients)
        if limit is not None:
            clip_grads_with_norm_(parameters, limit, norm)
        # Of sharded gradients: the norm over all processes.
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is not None:
        torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


def set_learning_rate(
    optimizer: torch.optim.Optimizer, schedule: Callable[[int], Any], update: int
) -> float:
    """Give each group its rate for the update with this number; the rate of the first group."""
    value = schedule(update)
    levels = value if isinstance(value, list | tuple) else [value]
    for group in optimizer.param_groups:
        group["lr"] = levels[min(group["level"], len(levels) - 1)] * group["lr_scale"]
    return float(optimizer.param_groups[0]["lr"])


def check_levels(optimizer: torch.optim.Optimizer, schedule: Callable[[int], Any]) -> None:
    """Refuse a schedule with a rate for each level where the parameters have other levels."""
    if not isinstance(schedule, HierarchicalScheduler):
        return
    levels = 1 + max(group["level"] for group in optimizer.param_groups)
    if schedule.num_levels != levels:
        raise ConfigError(
            f"schedule.levels has {schedule.num_levels} schedules, but the parameters of this "
            f"model are of {levels} level(s); give one for each"
        )


def weight_decay_schedule(
    section: OptimizerSection, epochs: float, steps_per_epoch: int
) -> Callable[[int], Any] | None:
    """The schedule of `optimizer.weight_decay_schedule`, from `optimizer.weight_decay` on."""
    chosen = section.weight_decay_schedule
    if chosen is None:
        return None
    key = "optimizer.weight_decay_schedule"
    return build_schedule(chosen, section.weight_decay, epochs, steps_per_epoch, key)


def set_weight_decay(
    optimizer: torch.optim.Optimizer, schedule: Callable[[int], Any] | None, update: int
) -> None:
    """Give its weight decay for this update to each group that decays at all."""
    if schedule is None:
        return
    value = schedule(update)
    for group in optimizer.param_groups:
        if group["decays"]:
            group["weight_decay"] = value * group.get("decay_scale", 1.0)
