"""Optimizer state by parameter name, so that frozen, unfrozen or re-ordered parameters load."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from overt.errors import CheckpointError
from overt.files.weight_files import clean_keys

# Not saved: the parameters themselves (their names are, cleaned) and how an update is computed,
# which belongs to the machine and not to the state.
_NOT_HYPER_PARAMETERS = (
    "params",
    "param_names",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
)

logger = logging.getLogger(__name__)


def parameter_names(model: nn.Module, optimizer: Optimizer) -> dict[Tensor, str]:
    """Return the clean name in `model` of every parameter that `optimizer` holds."""
    parameters = dict(model.named_parameters())
    clean = clean_keys(parameters, "the model")
    names: dict[Tensor, str] = {parameter: clean[name] for name, parameter in parameters.items()}
    for index, group in enumerate(optimizer.param_groups):
        strangers = sum(parameter not in names for parameter in group["params"])
        if strangers:
            raise CheckpointError(
                f"group {index} of the optimizer holds {strangers} parameter(s) that the model "
                "does not have, so they have no name to be saved or loaded by. Make them part of "
                "the model, or build the optimizer from this model's parameters."
            )
    return names


def describe(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state as tensors named `parameter/entry`, and groups and plain entries."""
    names = parameter_names(model, optimizer)
    tensors: dict[str, Tensor] = {}
    entries: dict[str, dict[str, Any]] = {}
    groups = []
    for group in optimizer.param_groups:
        hyper_parameters = {
            key: value for key, value in group.items() if key not in _NOT_HYPER_PARAMETERS
        }
        groups.append({"parameters": [names[p] for p in group["params"]], **hyper_parameters})
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{names[parameter]}/{key}"] = value
                else:
                    entries.setdefault(names[parameter], {})[key] = value
    return tensors, {"class": class_name(optimizer), "groups": groups, "entries": entries}


def class_name(optimizer: Optimizer) -> str:
    """Return the optimizer's class, or those that its groups name where there are several."""
    names = [group["class"] for group in optimizer.param_groups if "class" in group]
    return " + ".join(dict.fromkeys(names)) or type(optimizer).__name__


def restore(
    model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], saved: dict[str, Any]
) -> None:
    """Give every parameter the state saved under its name, and every group its numbers."""
    if saved["class"] != class_name(optimizer):
        raise CheckpointError(
            f"the checkpoint holds the state of {saved['class']}, but the optimizer is "
            f"{class_name(optimizer)}. Resume with the same optimizer, or start a new run from "
            "the weights alone (init_from)."
        )
    names = parameter_names(model, optimizer)
    state: dict[str, dict[str, Any]] = {
        name: {} for group in saved["groups"] for name in group["parameters"]
    }
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        state[name][entry] = tensor
    for name, entries in saved["entries"].items():
        state[name].update(entries)
    origin = {name: group for group in saved["groups"] for name in group["parameters"]}
    _refuse_moved_parameters(optimizer, names, origin, saved["class"])
    for group in optimizer.param_groups:
        known = [names[p] for p in group["params"] if names[p] in origin]
        _restore_hyper_parameters(group, [origin[name] for name in known])
        for parameter in group["params"]:
            if names[parameter] in origin:
                _restore_parameter(optimizer, group, parameter, state[names[parameter]])
    held = {names[p] for group in optimizer.param_groups for p in group["params"]}
    if held != origin.keys():
        logger.info(
            "%d parameter(s) are new to the optimizer and start without state; the saved state of "
            "%d that it no longer holds is dropped",
            len(held - origin.keys()),
            len(origin.keys() - held),
        )


def _refuse_moved_parameters(
    optimizer: Optimizer,
    names: dict[Tensor, str],
    origin: dict[str, dict[str, Any]],
    class_of_all: str,
) -> None:
    """Refuse a parameter whose state is of another class than the one that steps it now.

    Groups name their class where there are several.
    """
    for group in optimizer.param_groups:
        now = group.get("class", class_of_all)
        for name in (names[parameter] for parameter in group["params"]):
            before = origin[name].get("class", class_of_all) if name in origin else now
            if before != now:
                raise CheckpointError(
                    f"the checkpoint holds the state of {before} for {name}, which {now} steps now "
                    "(optimizer.rules). Resume with the same rules, or start a new run from the "
                    "weights alone (init_from)."
                )


def _restore_hyper_parameters(group: dict[str, Any], origins: list[dict[str, Any]]) -> None:
    for key, current in group.items():
        values = [origin[key] for origin in origins if key in origin]
        if not values:
            continue
        if any(value != values[0] for value in values):
            logger.warning(
                "parameters of one optimizer group were saved in groups with different %s; the "
                "configured value %s is used",
                key,
                current,
            )
        elif isinstance(current, Tensor):
            current.fill_(values[0])
        else:
            group[key] = tuple(values[0]) if isinstance(current, tuple) else values[0]


def _restore_parameter(
    optimizer: Optimizer, group: dict[str, Any], parameter: Tensor, entries: dict[str, Any]
) -> None:
    """Set the entries themselves: `load_state_dict` would cast them to the parameter's type."""
    optimizer.state.pop(parameter, None)
    restored: dict[str, Any] = {}
    for key, value in entries.items():
        if not isinstance(value, Tensor):
            restored[key] = value
        elif value.shape == parameter.shape and parameter.ndim > 0:
            # In the parameter's memory order, or the update would fall back to a slow path.
            restored[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            # torch keeps step counters on the host unless the update itself runs on the device.
            on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
            restored[key] = value.to("cpu" if on_host else parameter.device, copy=True)
    if restored:
        optimizer.state[parameter] = restored
