"""A small least-recently-used cache: orders, indexes, open files."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Keeps the last `capacity` values used; a copy sent to another process starts empty."""

    def __init__(self, capacity: int, discard: Callable[[Value], object] | None = None) -> None:
        """`discard` is called with every value that is dropped."""
        self.capacity, self.discard = capacity, discard
        self._values: dict[Key, Value] = {}  # least recently used first

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key; create it if it is not cached."""
        value = self._values.pop(key) if key in self._values else make()
        self._values[key] = value
        while len(self._values) > self.capacity:
            self.drop(next(iter(self._values)))
        return value

    def drop(self, key: Key) -> None:
        """Forget a value."""
        value = self._values.pop(key)
        if self.discard is not None:
            self.discard(value)

    def clear(self) -> None:
        """Forget all values."""
        for key in list(self._values):
            self.drop(key)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": {}}
