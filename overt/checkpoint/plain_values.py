"""Python values as JSON and back, for the part of a checkpoint that is not tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from overt.errors import CheckpointError

LARGEST_COUNT = 2**53  # beyond it a float counts no longer in ones


class HasState(Protocol):
    """A scheduler or scaler: its state is a dictionary of plain values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


def encode(value: Any, path: str) -> bytes:
    """Return `value` as JSON; a lone number of numpy or torch becomes Python's."""
    return json.dumps(_to_json(value, path), indent=1).encode()


def decode(text: bytes) -> Any:
    """Invert `encode`; tuples come back as lists."""
    try:
        return _from_json(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"not the plain values of a checkpoint: {error}") from None


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number that something can be counted with."""
    return type(value) is int and 0 <= value <= LARGEST_COUNT


def is_number(value: Any) -> bool:
    """Tell whether a value is a number that a float can hold; NaN and Inf are."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST_COUNT)


def _to_json(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _to_json(item, f"{path}.{key}") for key, item in value.items()}
        if all(isinstance(key, str | int | float) for key in value):
            # JSON would turn the keys into text.
            return {"__pairs__": _to_json(list(value.items()), path)}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; use numbers, text, "
        "True, False, None, and lists and dictionaries of these. Tensors belong in the model or "
        "into `tensors`."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"__pairs__"}:
            return {key: _from_json(item) for key, item in value["__pairs__"]}
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value
