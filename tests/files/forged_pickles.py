"""Arrays of every kind, and pickles that numpy would not write."""

import numpy as np

ARRAYS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big endian": np.arange(6, dtype=">f8").reshape(2, 3),
    "bool": np.array([True, False]),
    "uint8": np.arange(5, dtype=np.uint8),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "permuted": np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
    "strided": np.arange(10)[::2],
    "empty": np.zeros((0, 4)),
    "zero-dimensional": np.array(3.5),
    "text": np.array(["a", "bcd"]),
    "bytes": np.array([b"ab", b"c"]),
    "complex": np.array([1 + 2j]),
    "objects": np.array([{"a": np.ones(2)}, "text", None], dtype=object),
}


def same(one, other):
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        # numpy brings arrays to the byte order of the machine as it reads them.
        types = {array.dtype.newbyteorder("=") for array in (one, other)}
        alike = len(types) == 1 and one.shape == other.shape
        return alike and all(same(a, b) for a, b in zip(one.flat, other.flat, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


class Forged:
    """Pickles to a call of an admitted name with arguments and a state of one's choice."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


CORE = np._core if hasattr(np, "_core") else np.core

FORGERIES = {
    # Would read bytes as pointers to objects.
    "object flag on numbers": Forged(
        np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 63)
    ),
    "objects without the flag": Forged(
        np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)
    ),
    "object field": Forged(
        np.dtype,
        ("V8", False, True),
        (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0),
    ),
    "item size": Forged(np.dtype, ("S4", False, True), (3, "|", None, None, None, 400, 1, 0)),
    "object buffer": Forged(CORE.numeric._frombuffer, (b"\x41" * 8, np.dtype("O"), (1,), "C")),
    "object scalar": Forged(CORE.multiarray.scalar, (np.dtype("O"), b"\x41" * 8)),
    "field in a buffer": Forged(CORE.numeric._frombuffer, (b"\x41" * 8, [("a", "O")], (1,), "C")),
    "too few objects": Forged(
        CORE.multiarray._reconstruct,
        (np.ndarray, (0,), b"b"),
        (1, (1000,), np.dtype("O"), False, [None]),
    ),
    "negative shape": Forged(
        CORE.multiarray._reconstruct,
        (np.ndarray, (0,), b"b"),
        (1, (-1, -1), np.dtype("f8"), False, b"12345678"),
    ),
    "too few bytes": Forged(
        CORE.multiarray._reconstruct,
        (np.ndarray, (0,), b"b"),
        (1, (1000,), np.dtype("f8"), False, b"12345678"),
    ),
    "called class": Forged(np.ndarray, ((1,), "O", b"\x41" * 8)),
    "subclass of array": Forged(
        CORE.multiarray._reconstruct, (np.matrix, (0,), b"b"), (1, (1, 1), "f8", False, b"")
    ),
}
