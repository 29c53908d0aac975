"""FSDP2: parameters, gradients and optimizer state sharded over all ranks.

`fully_shard` works in place: the model stays the recipe's own module, with its own keys. Each block
is gathered just before it runs and dropped just after (docs/sharding.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from overt.config.schema import TrainingSection
from overt.distributed import World
from overt.errors import ConfigError

# What is gathered and added up stays float32: 16-bit matrix products are autocast's to choose, as
# they are without shards, so that what a recipe keeps in float32 stays there.
FLOAT32 = MixedPrecisionPolicy(
    param_dtype=None, reduce_dtype=torch.float32, cast_forward_inputs=False
)


def refuse_contradictions(training: TrainingSection, units: list[nn.Module]) -> None:
    """Refuse settings that contradict `training.strategy=fsdp`."""
    if not units:
        raise ConfigError(
            "training.strategy=fsdp gathers block by block, but this recipe names no blocks; set "
            "training.strategy=ddp, or give the recipe `blocks` or `shard_units` "
            "(see `overt docs add_a_recipe`)"
        )
    if training.cuda_graph is True:
        raise ConfigError(
            "training.cuda_graph=true with training.strategy=fsdp: gathering shards cannot be "
            "replayed; set training.cuda_graph=false, or training.strategy=ddp"
        )
    if training.compile == "model":
        raise ConfigError(
            "training.compile=model with training.strategy=fsdp: blocks are gathered one by one, "
            "which one graph of the whole model cannot contain; set training.compile=blocks"
        )


def shard_in_place(model: nn.Module, units: list[nn.Module], world: World) -> FSDPModule:
    """Leave each rank its shard of every parameter: unit by unit, then the rest."""
    chosen = set(units)
    _refuse_ties_between_units(model, chosen)
    mesh = make_mesh(world)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # not channels last, which FSDP refuses
    # Inner units first: what is left of an outer one, and last of the model, is its own.
    for module in reversed([module for module in model.modules() if module in chosen]):
        if module is not model and any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh, mp_policy=FLOAT32)
    sharded: FSDPModule = fully_shard(model, mesh=mesh, mp_policy=FLOAT32)
    return sharded


def make_mesh(world: World) -> DeviceMesh:
    """Return all ranks in one dimension."""
    return init_device_mesh(world.device.type, (world.world_size,))


def _refuse_ties_between_units(model: nn.Module, units: set[nn.Module]) -> None:
    """A parameter of two units would silently become two parameters."""
    first_owner: dict[nn.Parameter, tuple[nn.Module, str]] = {}

    def visit(module: nn.Module, path: str, unit: nn.Module) -> None:
        unit = module if module in units else unit
        for name, parameter in module.named_parameters(recurse=False):
            first, first_path = first_owner.setdefault(parameter, (unit, path + name))
            if first is not unit:
                raise ConfigError(
                    f"training.strategy=fsdp: {first_path} and {path}{name} are one parameter, but "
                    "belong to two units that are gathered separately. Let the recipe's "
                    "`shard_units` exclude both, or name a module that holds both; or set "
                    "training.strategy=ddp"
                )
        for name, child in module.named_children():
            visit(child, f"{path}{name}.", unit)

    visit(model, "", model)


def call_gathered(model: nn.Module, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of a sharded model as if it were its forward, which is what gathers."""
    shadowed = vars(model).get("forward")
    model.forward = method
    try:
        return model(*arguments)
    finally:
        del model.forward
        if shadowed is not None:
            model.forward = shadowed


class WholeModel:
    """The bare model beside its sharded self, without memory until its weights are gathered.

    For whatever runs forward passes that the processes do not share: scoring, where each has its
    own samples and maybe one more than another, pictures on the main process, the search for NaN.
    """

    def __init__(self, model: nn.Module) -> None:
        """From the bare model, before it is compiled or sharded."""
        tensors = [*model.parameters(), *model.buffers()]
        self._module = deepcopy(model, {id(tensor): _without_memory(tensor) for tensor in tensors})

    @contextmanager
    def gathered(self, sharded: nn.Module) -> Iterator[nn.Module]:
        """The bare model with all weights of `sharded`; every process must enter this."""
        device = next(sharded.parameters()).device
        module = self._module.to_empty(device=device)
        with torch.no_grad():
            for target, shard in zip(_tensors(module), _tensors(sharded), strict=True):
                target.copy_(shard.full_tensor() if isinstance(shard, DTensor) else shard)
        try:
            yield module
        finally:
            module.zero_grad(set_to_none=True)
            self._module = module.to("meta")


def _without_memory(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers in the order of the modules; tied ones under each of their names."""
    return [
        *(parameter for _, parameter in module.named_parameters(remove_duplicate=False)),
        *(buffer for _, buffer in module.named_buffers(remove_duplicate=False)),
    ]
