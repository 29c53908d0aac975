"""A run's state from a checkpoint folder: weights, optimizer, scaler and the rest, bit for bit."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from overt.checkpoint import optimizer_state, plain_values
from overt.checkpoint.manifest import read_manifest, verify
from overt.checkpoint.named_tensors import is_sharded, named_tensors
from overt.checkpoint.plain_values import HasState
from overt.checkpoint.reading import folder_parts, read_part
from overt.checkpoint.weights import load_tensors
from overt.errors import CheckpointError
from overt.files.weight_files import read_safetensors
from overt.files.yaml_text import read_text
from overt.nn.base import check_base

# Of state.json; the first six are handed back to the caller.
RETURNED = ("epoch", "step", "metrics", "best_metric", "scheduler", "state")
STATE_KEYS = {*RETURNED, "scaler", "optimizer"}

logger = logging.getLogger(__name__)


def checked_folder(path: Path) -> Path:
    """Return the real path of a checkpoint that the user named; refused where it is broken."""
    if not path.is_dir():
        raise CheckpointError(
            f"{path} is not a checkpoint folder of overt. To resume, name a folder such as "
            "checkpoints/latest; to start from the weights of any other file use init_from."
        )
    path = path.resolve()
    verification = verify(path)
    if not verification.good:
        raise CheckpointError(
            f"{path} cannot be used: {verification}. Name an older checkpoint next to it."
        )
    return path


def restore_folder(
    path: Path,
    model: nn.Module | None,
    optimizer: Optimizer | None,
    scaler: HasState | None,
    ema: nn.Module | None,
) -> dict[str, Any]:
    """Restore what is given, and return the rest by name: see `CheckpointManager`."""
    files = read_manifest(path)["files"]
    described = _read_state(path / "state.json")
    if optimizer is not None and model is None:
        raise CheckpointError(
            "optimizer state is kept by parameter name: pass the model together with the optimizer"
        )
    if ema is not None:
        _require(path, "ema")
    if optimizer is not None:
        _require(path, "optimizer")
    if model is not None and is_sharded(model):
        from overt.checkpoint import shards

        shards.restore(path, described["optimizer"], model, ema, optimizer)
        check_base(model, str(path))
    else:
        if model is not None:
            _restore_weights(path, "model", model)
        if ema is not None:
            _restore_weights(path, "ema", ema)
        if model is not None and optimizer is not None:
            moments = read_part(path, "optimizer")
            optimizer_state.restore(model, optimizer, moments, described["optimizer"])
    if scaler is not None and described["scaler"]:
        _refuse_other_numbers(path, described["scaler"], scaler.state_dict())
        scaler.load_state_dict(described["scaler"])
    elif scaler is not None and scaler.state_dict():
        logger.warning("%s holds no scaler state; the loss scale starts from scratch", path)
    tensors: dict[str, Tensor] = {}
    if "rng.safetensors" in files:
        tensors, _ = read_safetensors(path / "rng.safetensors")
    config = read_text(path / "config.yaml") if "config.yaml" in files else None
    returned = {key: described[key] for key in RETURNED}
    return {"path": path, **returned, "tensors": tensors, "config_yaml": config}


def _restore_weights(path: Path, part: str, module: nn.Module) -> None:
    tensors = read_part(path, part)
    _refuse_other_types(path, part, tensors, module)
    report = load_tensors(tensors, module, strict=True, source=str(path / part))
    if report.skipped:
        raise CheckpointError(
            f"{report}\nA resumed run needs the sizes it was saved with; to start another run "
            "from these weights use init_from."
        )


def _refuse_other_types(
    path: Path, part: str, tensors: dict[str, Tensor], module: nn.Module
) -> None:
    """Refuse tensors of another type: copying would silently convert them."""
    current = named_tensors(module)
    wrong = [
        f"{name}: {tensor.dtype} in the checkpoint, {current[name].dtype} in the model"
        for name, tensor in tensors.items()
        if name in current and current[name].dtype != tensor.dtype
    ]
    if wrong:
        raise CheckpointError(
            f"{path / part} holds {len(wrong)} tensor(s) of another type:\n  "
            + "\n  ".join(wrong[:8])
            + "\nA resumed run needs the types it was saved with; to start another run from these "
            "weights use init_from."
        )


def _require(path: Path, part: str) -> None:
    held = folder_parts(path)
    if part not in held:
        raise CheckpointError(
            f"{path} has no {part} part, so the run cannot resume from it exactly; it holds "
            f"{', '.join(held)}. Start a new run from its weights instead (init_from)."
        )


def _refuse_other_numbers(path: Path, saved: Any, current: dict[str, Any]) -> None:
    """Refuse the state of a loss scaler with unexpected keys, or values that are not numbers."""
    if not current:
        return  # a scaler that is off takes no state
    good = (
        isinstance(saved, dict)
        and saved.keys() == current.keys()
        and all(
            isinstance(value, int | float) and 0 <= value < math.inf for value in saved.values()
        )
    )
    if not good:
        raise CheckpointError(f"{path / 'state.json'}: the scaler's state was not written by overt")


def _read_state(file: Path) -> dict[str, Any]:
    """Read what is not tensors, with every key that is used later."""
    try:
        described = plain_values.decode(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    if not isinstance(described, dict) or not described.keys() >= STATE_KEYS:
        raise CheckpointError(f"{file} was not written by overt: keys are missing")
    step, metrics, best = described["step"], described["metrics"], described["best_metric"]
    good = (
        all(item is None or plain_values.is_count(item) for item in (step, described["epoch"]))
        and isinstance(metrics, dict)
        and all(plain_values.is_number(value) for value in metrics.values())
        and (best is None or plain_values.is_number(best))
        and isinstance(described["state"], dict)
    )
    if not good:
        raise CheckpointError(f"{file} was not written by overt: values have other types")
    return described
