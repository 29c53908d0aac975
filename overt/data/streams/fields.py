"""Decode the bytes of a member by its suffix. Nothing is unpickled or executed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.data.images.decode import as_tensor, decode_image
from overt.errors import DataError

KEY, SHARD = "__key__", "__shard__"
IMAGES = ("jpg", "jpeg", "png", "webp")


def check_names(fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the requested fields; reject a single string, which is a list of letters."""
    if isinstance(fields, str):
        raise DataError(f"fields={fields!r}; expected a list of suffixes, such as [{fields!r}]")
    return None if fields is None else tuple(fields)


def check_fields(
    available: Collection[str], fields: Sequence[str] | None, key: str, shard: str
) -> None:
    """Reject a sample that lacks a field."""
    missing = [field for field in fields or () if field not in available]
    if missing:
        raise DataError(
            f"{shard}: the sample {key} has no {', '.join(missing)}; it has "
            f"{', '.join(sorted(available))}. Write the shard again, or ask for other fields"
        )


def decode_fields(content: Mapping[str, bytes], key: str, shard: str) -> dict[str, Any]:
    """Return the values of a sample by suffix, and its key and shard.

    jpg, jpeg, png and webp become uint8 tensors (3, H, W), json its value, txt a string, cls an
    integer, npy an array; anything else stays bytes.
    """
    values: dict[str, Any] = {KEY: key, SHARD: shard}
    for suffix, encoded in content.items():
        values[suffix] = decode_field(encoded, suffix, f"{shard}: {key}.{suffix}")
    return values


def decode_field(content: bytes, suffix: str, name: str) -> Any:
    """Decode one member; raise a DataError with `name` if it is damaged."""
    kind = suffix.rpartition(".")[2]
    if kind in IMAGES:
        return as_tensor(decode_image(content, name))
    if kind not in DECODERS:
        return content
    try:
        return DECODERS[kind](content)
    except (ValueError, EOFError, RecursionError, MemoryError, OverflowError) as error:
        raise DataError(f"{name}: not valid {kind} ({error}); write the shard again") from error


def _text(content: bytes) -> str:
    return content.decode("utf-8")


def _class(content: bytes) -> int:
    return int(content.decode("ascii"))


def _array(content: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return array


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "txt": _text,
    "cls": _class,
    "npy": _array,
}
