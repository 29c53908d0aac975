"""Optimizer state by parameter name, so that frozen, unfrozen or re-ordered parameters load."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from overt.checkpoint import plain_values
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

# In a group: the values that the configuration gave it. Training may change those in use.
CONFIGURED = "configured"

# Entries that are one number for the whole parameter.
COUNTERS = ("step", "mu_product", "eta", "mu")

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


def remember_configured(optimizer: Optimizer) -> None:
    """Record in each group of a new optimizer what it was configured with.

    But for the learning rate: every step takes it from the schedule.
    """
    others = (*_NOT_HYPER_PARAMETERS, "lr")
    for group in optimizer.param_groups:
        group[CONFIGURED] = {key: value for key, value in group.items() if key not in others}


def class_name(optimizer: Optimizer) -> str:
    """Return the optimizer's class, or those that its groups name where there are several."""
    names = [group["class"] for group in optimizer.param_groups if "class" in group]
    return " + ".join(dict.fromkeys(names)) or type(optimizer).__name__


def restore(
    model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], saved: dict[str, Any]
) -> None:
    """Give every parameter the state saved under its name, and every group its numbers.

    Numbers that the configuration has changed since then keep their new values. Everything is
    compared first: torch's fused kernels do not look at the sizes of their inputs.
    """
    _refuse_forged(saved)
    if saved["class"] != class_name(optimizer):
        raise CheckpointError(
            f"the checkpoint holds the state of {saved['class']}, but the optimizer is "
            f"{class_name(optimizer)}. Resume with the same optimizer, or start a new run from the "
            "weights alone (init_from)."
        )
    names = parameter_names(model, optimizer)
    state: dict[str, dict[str, Any]] = {
        name: {} for group in saved["groups"] for name in group["parameters"]
    }
    owners = {name: parameter for parameter, name in names.items()}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in state:
            raise CheckpointError(
                f"the optimizer state {key} does not belong to any parameter of a group"
            )
        if name in owners:
            refuse_misfit(key, tensor.shape, tensor.dtype, owners[name], optimizer)
        state[name][entry] = tensor
    for name, entries in saved["entries"].items():
        if name not in state:
            raise CheckpointError(f"the optimizer state of {name} does not belong to any parameter")
        state[name].update(entries)
    origin = {name: group for group in saved["groups"] for name in group["parameters"]}
    _refuse_moved_parameters(optimizer, names, origin, saved["class"])
    _refuse_incomplete(optimizer, names, state)
    for group in optimizer.param_groups:
        present = [names[p] for p in group["params"] if names[p] in origin]
        _restore_hyper_parameters(group, [origin[name] for name in present], _of_torch(optimizer))
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


def refuse_misfit(
    key: str, shape: Sequence[int], dtype: torch.dtype, parameter: Tensor, optimizer: Optimizer
) -> None:
    """Refuse an entry that the optimizer itself would not have made; of torch's own all is known.

    Of another class only counters are compared: its updates are Python, which checks for itself.
    """
    entry, expected = key.rpartition("/")[2], tuple(parameter.shape)
    of_torch = _of_torch(optimizer)
    if entry in COUNTERS:
        fits, requirement = math.prod(shape) == 1 and not dtype.is_complex, "one number"
        if of_torch:
            fits = fits and dtype in (torch.float32, torch.float64)
            requirement = "one torch.float32"
    elif not of_torch:
        return
    else:
        if entry == "row_var":  # of Adafactor
            expected = (*expected[:-1], 1)
        elif entry == "col_var":
            expected = (*expected[:-2], 1, *expected[-1:])
        fused = any(group.get("fused") for group in optimizer.param_groups)
        fits = tuple(shape) == expected and dtype.is_floating_point
        fits = fits and (dtype == parameter.dtype or not fused)
        requirement = f"shape {expected} and {parameter.dtype}"
    if not fits:
        raise CheckpointError(
            f"the optimizer state {key} has shape {tuple(shape)} and {dtype}, expected "
            f"{requirement}; the checkpoint is damaged or of another model. "
            "Use an older checkpoint."
        )


def _of_torch(optimizer: Optimizer) -> bool:
    """Tell whether torch's own classes alone step the parameters."""
    members = getattr(optimizer, "members", [optimizer])
    return all(type(member).__module__.startswith("torch.") for member in members)


def _refuse_incomplete(
    optimizer: Optimizer, names: dict[Tensor, str], state: dict[str, dict[str, Any]]
) -> None:
    """Refuse a parameter that lacks an entry its optimizer counts on; without any it starts new."""
    for member in getattr(optimizer, "members", [optimizer]):
        for group in member.param_groups:
            expected: dict[int, set[str]] = {}
            for parameter in group["params"]:
                entries = state.get(names[parameter])
                if not entries:
                    continue
                if parameter.ndim not in expected:
                    expected[parameter.ndim] = _entries_of(member, group, parameter.ndim)
                if missing := expected[parameter.ndim] - entries.keys():
                    raise CheckpointError(
                        f"the optimizer state of {names[parameter]} lacks {sorted(missing)[0]}; "
                        "the checkpoint is damaged or of another optimizer. Use an older "
                        "checkpoint."
                    )


def _entries_of(optimizer: Optimizer, group: dict[str, Any], dimensions: int) -> set[str]:
    """Return the entries that a torch optimizer makes, by a step of one number."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch."):
        return set()
    number = nn.Parameter(torch.zeros((1,) * dimensions))
    number.grad = torch.zeros_like(number)
    hyper_parameters = {
        key: float(value) if isinstance(value, Tensor) else value
        for key, value in group.items()
        if key in optimizer.defaults and key not in _NOT_HYPER_PARAMETERS
    }
    try:
        fresh = kind([{"params": [number], **hyper_parameters}])  # type: ignore[call-arg]
        fresh.step()
    except (TypeError, ValueError, RuntimeError):  # it steps in another way, as LBFGS does
        return set()
    return set(fresh.state[number])


def _refuse_forged(saved: Any) -> None:
    """Refuse a description that `describe` cannot have written."""
    good = (
        isinstance(saved, dict)
        and isinstance(saved.get("class"), str)
        and isinstance(saved.get("groups"), list)
        and all(
            isinstance(group, dict)
            and isinstance(group.get("parameters"), list)
            and all(isinstance(name, str) for name in group["parameters"])
            for group in saved["groups"]
        )
        and isinstance(saved.get("entries"), dict)
        and all(
            isinstance(entries, dict)
            and all(value is None or isinstance(value, int | float) for value in entries.values())
            for entries in saved["entries"].values()
        )
    )
    if not good:
        raise CheckpointError(
            "the optimizer state was not written by overt: keys or types differ. Use an older "
            "checkpoint."
        )


def _is_like(value: Any, current: Any) -> bool:
    """Tell whether a saved hyper-parameter can take the place of the current one."""
    if isinstance(current, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(current)
            and all(map(_is_like, value, current))
        )
    if isinstance(current, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(current, bool)
    if isinstance(current, int | float | Tensor):
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return current is None or value is None or type(value) is type(current)


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
        class_now = group.get("class", class_of_all)
        for name in (names[parameter] for parameter in group["params"]):
            before = origin[name].get("class", class_of_all) if name in origin else class_now
            if before != class_now:
                raise CheckpointError(
                    f"the checkpoint holds the state of {before} for {name}, but {class_now} "
                    "updates it now (optimizer.rules). Resume with the same rules, or start a new "
                    "run from the weights alone (init_from)."
                )


def _is_reconfigured(
    key: str, group: dict[str, Any], origin: dict[str, Any], of_torch: bool
) -> bool:
    """Tell whether the configuration gives a group another value than when `origin` was saved."""
    now, before = group.get(CONFIGURED, {}), origin.get(CONFIGURED)
    if key not in now:
        return False
    if isinstance(before, dict):
        value = before.get(key, now[key])
    else:  # older checkpoints do not say; torch's own classes leave their groups as configured
        value = origin[key] if of_torch else now[key]
    return plain_values.encode(value, key) != plain_values.encode(now[key], key)


def _restore_hyper_parameters(
    group: dict[str, Any], origins: list[dict[str, Any]], of_torch: bool
) -> None:
    for key, current in group.items():
        holders = [origin for origin in origins if key in origin]
        if not holders or key == CONFIGURED:
            continue
        if any(_is_reconfigured(key, group, origin, of_torch) for origin in holders):
            continue  # the user has confirmed this change
        values = [origin[key] for origin in holders]
        for value in values:
            if not _is_like(value, current):
                raise CheckpointError(
                    f"{key}={value!r} of the saved optimizer has another type than {current!r}; "
                    "the checkpoint is damaged. Use an older one."
                )
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
