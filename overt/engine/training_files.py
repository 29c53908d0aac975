"""Training files of the original projects: continue a run that was started there.

A file is what `torch.save` made of a dictionary: `model`, `optimizer`, `scheduler`, and
`total_steps`, or `scaler` and `epoch`. Nothing in it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.optim import Optimizer

from overt.checkpoint import optimizer_state
from overt.checkpoint.named_tensors import is_sharded
from overt.checkpoint.plain_values import HasState, is_count
from overt.checkpoint.weights import load_initial
from overt.config.schema import CheckpointSection
from overt.engine.build import Parts
from overt.engine.order import Position
from overt.engine.state import State, refuse_step_beyond
from overt.errors import CheckpointError
from overt.files.weight_files import clean_keys, find_weights, read_torch_file

ADVICE = "To start a new run from its weights alone use checkpoint.init_from"


def is_training_file(name: str | None) -> TypeGuard[str]:
    """Tell whether `checkpoint.resume` names a file; overt's own checkpoints are folders."""
    return name is not None and Path(name).is_file()


def continue_run(name: str, parts: Parts, state: State, section: CheckpointSection) -> str:
    """Bring a run to where a training file ends; return where that is."""
    steps = restore_training_file(Path(name), parts.model, parts.optimizer, parts.scaler)
    refuse_step_beyond(steps, parts.total_steps, section)
    epoch, step = divmod(steps, parts.loader.steps_per_epoch)
    state.step = state.evaluated_step = steps
    state.position = Position(epoch, step * parts.plan.global_batch_size)
    parts.loader.seek(state.position)
    return state.describe(Path(name))


def restore_training_file(
    path: Path, model: nn.Module, optimizer: Optimizer, scaler: HasState | None
) -> int:
    """Give model, optimizer and scaler the state of the file; return the steps that it has made."""
    if is_sharded(model):
        raise CheckpointError(
            f"checkpoint.resume={path}: such a file is read into whole weights; resume it with "
            "training.strategy=auto, and from the checkpoint that run writes with fsdp"
        )
    try:
        content = read_torch_file(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint.resume={path} is not a checkpoint folder, and not a training file either: "
            f"{error}"
        ) from error
    parts = content if isinstance(content, Mapping) else {}
    missing = [key for key in ("optimizer", "scheduler") if not isinstance(parts.get(key), Mapping)]
    if missing:
        raise CheckpointError(
            f"checkpoint.resume={path} holds no {' and no '.join(missing)}: it is not a training "
            f"file. {ADVICE}, or name a checkpoint folder of overt"
        )
    steps = steps_made(parts, path)
    load_initial(path, model)
    names = parameter_order(find_weights(content, path)[0], model, path)
    tensors, described = named_state(parts["optimizer"], names, path)
    described["class"] = optimizer_state.class_name(optimizer)
    optimizer_state.restore(model, optimizer, tensors, described)
    saved_scaler = parts.get("scaler")
    if scaler is not None and scaler.state_dict() and isinstance(saved_scaler, Mapping):
        scaler.load_state_dict(dict(saved_scaler))
    return steps


def steps_made(parts: Mapping[str, Any], path: Path) -> int:
    """Return the optimizer steps that the file says, or that its schedule has counted."""
    steps = parts.get("total_steps", parts["scheduler"].get("last_epoch"))
    if not is_count(steps):
        raise CheckpointError(
            f"{path}: it does not say how many steps were made: neither total_steps nor "
            f"scheduler.last_epoch is a count (got {steps!r}). {ADVICE}"
        )
    return int(steps)


def parameter_order(tensors: Mapping[str, Tensor], model: nn.Module, path: Path) -> list[str]:
    """Return the model's parameters in the order in which the file's module had them.

    An optimizer numbers parameters as its module lists them, and a state dict has that order, with
    buffers in between.
    """
    parameters = dict(model.named_parameters())
    return [name for name in clean_keys(tensors, str(path)).values() if name in parameters]


def named_state(
    saved: Mapping[str, Any], names: list[str], path: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's numbered state by the names of parameters, as overt keeps it."""
    try:
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        entries = {number: dict(entry) for number, entry in saved["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(
            f"{path}: its optimizer is not a state dict of torch. {ADVICE}"
        ) from None
    if sorted(map(str, numbers)) != sorted(map(str, range(len(names)))):
        raise CheckpointError(
            f"{path}: its optimizer has {len(numbers)} parameters and its model {len(names)} that "
            f"this recipe knows; it was trained with another model. {ADVICE}"
        )
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for number, entry in entries.items():
        name = names[number]
        for key, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value
            else:
                plain.setdefault(name, {})[key] = value
    return tensors, {"groups": [{"parameters": names}], "entries": plain}
