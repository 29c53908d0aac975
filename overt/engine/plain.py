"""Python values as JSON and back, for the part of a checkpoint that is not tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overt.errors import CheckpointError


def to_plain(value: Any, where: str) -> Any:
    """`value` in JSON's types; a lone number of numpy or torch becomes Python's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_plain(item, f"{where}.{key}") for key, item in value.items()}
        pairs = [[key, item] for key, item in value.items()]
        return {"__pairs__": to_plain(pairs, where)}
    if isinstance(value, list | tuple):
        return [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise CheckpointError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold; allowed are "
        "numbers, text, True, False, None, and lists and dictionaries of these. Tensors belong "
        "into the model or into `tensors`."
    )


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`, but for tuples, which stay lists."""
    if isinstance(value, dict):
        if value.keys() == {"__pairs__"}:
            return {key: from_plain(item) for key, item in value["__pairs__"]}
        return {key: from_plain(item) for key, item in value.items()}
    return [from_plain(item) for item in value] if isinstance(value, list) else value
