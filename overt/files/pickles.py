"""Pickles read as data: numpy arrays, torch tensors and plain containers, and nothing else.

A pickle is a program. Every name it may call is replaced by a function of this file or by a class
that only holds state, and the state it may set is checked, so that the worst a hostile file can do
is to be refused. Torch is imported only for a pickle that holds tensors.
"""

from __future__ import annotations

import codecs
import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np

from overt.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

# Number, text and object types as numpy spells them in a pickle; no structures, no dates.
_PLAIN_TYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU]\d+|O8?)")

# Stands for numpy.ndarray: pickles name the class only to hand it to `_reconstruct`, and what
# cannot be called cannot be abused.
_NDARRAY = "numpy.ndarray"
_OBJECT = "object"  # likewise, for `_new`


class PickledState:
    """Stands for an object whose class is not imported: it holds what was pickled of it, no more.

    A reader of such files derives from it and admits the class by its dotted name.
    """

    state: Mapping[str, Any] = MappingProxyType({})


class _NotAdmittedError(Exception):
    """The dotted name of something that a pickle asks for and that is not admitted."""


def _dtype(code: object, align: object = False, copy: object = True) -> np.dtype[Any]:
    if not isinstance(code, str) or not _PLAIN_TYPE.fullmatch(code):
        raise pickle.UnpicklingError(f"array type {code!r} is not a plain number, text or object")
    # A copy, since the state that follows sets the byte order in place.
    return np.dtype(code, copy=True)


def _reconstruct(kind: object, shape: object, code: object) -> np.ndarray[Any, Any]:
    if kind is not _NDARRAY:
        raise pickle.UnpicklingError(f"array of class {kind!r}")
    return np.empty(0, dtype=np.int8)  # shape, type and content arrive with the state


def _scalar(dtype: np.dtype[Any], data: bytes | str) -> Any:
    if dtype.hasobject:
        raise pickle.UnpicklingError("scalar of object type")
    if isinstance(data, str):  # the bytes of Python 2
        data = _encode(data, "latin1")
    return np.frombuffer(data, dtype=dtype, count=1)[0]


def _frombuffer(
    buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, axis_order: Any = None
) -> np.ndarray[Any, Any]:
    if not isinstance(dtype, np.dtype):
        raise pickle.UnpicklingError(f"array of type {dtype!r}")
    array = np.frombuffer(buffer, dtype=dtype)  # refuses object types by itself
    if order == "K":  # `shape` is in memory order then, and `axis_order` leads back
        return array.reshape(shape).transpose(axis_order)
    return array.reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes written as {encoding!r}; only latin1 is in use")
    return codecs.latin_1_encode(text)[0]


def _no_bytes() -> bytes:
    return b""  # protocols 0 to 2 write empty bytes as a call without arguments


def _new(kind: object, base: object, state: object) -> PickledState:
    """An object without its state yet, as protocols 0 and 1 write it."""
    if not (isinstance(kind, type) and issubclass(kind, PickledState)):
        raise pickle.UnpicklingError(f"object of class {kind!r}")
    if base is not _OBJECT or state is not None:
        raise pickle.UnpicklingError(f"object made from {base!r}")
    return kind()


@dataclass(frozen=True)
class _Storage:
    """All numbers that tensors are cut from, in one row; a pickle can only pass it on."""

    numbers: Tensor


def _storage(data: bytes) -> _Storage:
    """A storage, which lies within a pickle as a whole file of torch.save."""
    import torch

    try:
        storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named is None:
            raise
        raise _NotAdmittedError(named[1]) from None
    if not isinstance(storage, torch.storage.TypedStorage):
        raise pickle.UnpicklingError(f"{type(storage).__name__} in place of a tensor's storage")
    return _Storage(torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage))


def _tensor(
    storage: object, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    """A tensor on the CPU; whether it had a gradient is dropped, since it is data here."""
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError(f"{type(storage).__name__} in place of a tensor's storage")
    if not all(type(number) is int and number >= 0 for number in (offset, *size, *stride)):
        raise pickle.UnpicklingError("tensor with a layout that torch does not write")
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    stored = len(storage.numbers)
    if math.prod(size) > 0 and last >= stored:
        raise pickle.UnpicklingError(f"tensor of {size} with only {stored} numbers stored")
    return storage.numbers.as_strided(size, stride, offset)


def _parameter(data: object, *_: object) -> object:
    return data  # the tensor within, without its gradient


# The one list of what a pickle may name of numpy, and what stands for it.
NUMPY: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _dtype,
}
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2
    NUMPY[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    NUMPY[f"{_core}.multiarray", "scalar"] = _scalar
    NUMPY[f"{_core}.numeric", "_frombuffer"] = _frombuffer

_ADMITTED: dict[tuple[str, str], object] = {
    **NUMPY,
    ("_codecs", "encode"): _encode,  # how protocols 0 to 2 write bytes
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.storage", "_load_from_bytes"): _storage,
}
for _module in ("builtins", "__builtin__"):  # protocols 3 and later, 0 to 2
    _ADMITTED[_module, "set"] = set
    _ADMITTED[_module, "frozenset"] = frozenset
    _ADMITTED[_module, "bytes"] = _no_bytes
    _ADMITTED[_module, "object"] = _OBJECT
for _module in ("copyreg", "copy_reg"):  # Python 3 and 2
    _ADMITTED[_module, "_reconstructor"] = _new


def _build(unpickler: Any) -> None:
    """Set the state of an array, an array type or a stand-in: nothing else has one here."""
    state = unpickler.stack.pop()
    target = unpickler.stack[-1]
    if isinstance(target, PickledState):
        if not isinstance(state, dict):
            raise pickle.UnpicklingError(f"object with a {type(state).__name__} as its state")
        target.state = state
        return
    if isinstance(target, np.ndarray):
        _check_array_state(state)
    elif isinstance(target, np.dtype):
        _check_dtype_state(target, state)
    else:
        raise pickle.UnpicklingError(f"state for an object of class {type(target).__name__}")
    target.__setstate__(state)


def _check_array_state(state: Any) -> None:
    """Type and size of the content: numpy itself counts bytes, but not the entries of a list."""
    _version, shape, dtype, _fortran, content = state
    counts = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not isinstance(dtype, np.dtype) or not counts:
        raise pickle.UnpicklingError("array with a state that numpy does not write")
    if dtype.hasobject and not (isinstance(content, list) and len(content) == math.prod(shape)):
        raise pickle.UnpicklingError(f"array of {shape} objects with another number of them")


def _check_dtype_state(dtype: np.dtype[Any], state: Any) -> None:
    """Only the byte order may change: forged flags or sizes would let bytes pass for pointers."""
    version, order, subtype, names, fields, itemsize, alignment, flags = state
    plain = (
        version in (3, 4)
        and order in ("<", ">", "|", "=")
        and subtype is names is fields is None
        and itemsize in (-1, dtype.itemsize)
        and alignment in (-1, dtype.alignment)
        and flags == dtype.flags
    )
    if not plain:
        raise pickle.UnpicklingError(f"array type with state {state!r}")


# --- the same list for torch.load, which sets states by itself -----------------------------------


class _TypeOfNumbers:
    """Stands for a numpy.dtype in a torch file: checks the state that torch sets."""

    def __init__(self, *arguments: Any) -> None:
        self.dtype = _dtype(*arguments)
        if self.dtype.hasobject:
            raise pickle.UnpicklingError("array of objects (ObjectDType)")

    def __setstate__(self, state: Any) -> None:
        _check_dtype_state(self.dtype, state)
        self.dtype = self.dtype.newbyteorder(state[1])


class CheckedArray(np.ndarray[Any, Any]):
    """An array of a torch file: checks the state that torch sets. A file cannot make one."""

    def __new__(cls, *_: object) -> CheckedArray:
        raise pickle.UnpicklingError("array that numpy did not write")

    def __setstate__(self, state: Any) -> None:
        version, shape, kind, fortran, content = state
        checked = (version, shape, _type_of(kind), fortran, content)
        _check_array_state(checked)
        super().__setstate__(checked)


def _type_of(kind: object) -> np.dtype[Any]:
    if not isinstance(kind, _TypeOfNumbers):
        raise pickle.UnpicklingError(f"array of type {kind!r}")
    return kind.dtype


def _checked_array(kind: object, shape: object, code: object) -> CheckedArray:
    return _reconstruct(kind, shape, code).view(CheckedArray)


def _checked_scalar(kind: object, data: bytes | str) -> Any:
    return _scalar(_type_of(kind), data)


def _checked_buffer(
    buffer: Any, kind: object, shape: tuple[int, ...], order: Any, axis_order: Any = None
) -> np.ndarray[Any, Any]:
    return _frombuffer(buffer, _type_of(kind), shape, order, axis_order)


def safe_globals() -> list[tuple[Any, str]]:
    """The list `NUMPY` for `torch.serialization.safe_globals`."""
    checked: dict[object, object] = {
        _dtype: _TypeOfNumbers,
        _reconstruct: _checked_array,
        _scalar: _checked_scalar,
        _frombuffer: _checked_buffer,
    }
    named = [
        (checked.get(function, function), f"{module}.{name}")
        for (module, name), function in NUMPY.items()
    ]
    empty = [(_no_bytes, f"{module}.bytes") for module in ("builtins", "__builtin__")]
    # Torch sets the state of objects of a listed class only.
    return [*named, *empty, (CheckedArray, f"{__name__}.CheckedArray")]


# The unpickler written in Python, since the one in C offers no way to check what BUILD sets. An
# array is one opcode whatever its size, so the speed is that of the disk.
class _SafeUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _build,
    }

    def __init__(self, file: IO[bytes], further: Mapping[tuple[str, str], type[PickledState]]):
        super().__init__(file, encoding="latin1")  # what keeps the bytes of Python 2's texts
        self.admitted = _ADMITTED | dict(further)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.admitted:
            raise _NotAdmittedError(f"{module}.{name}")
        return self.admitted[module, name]


def load_pickle(
    file: IO[bytes],
    name: str | None = None,
    further: Mapping[tuple[str, str], type[PickledState]] = MappingProxyType({}),
) -> object:
    """Read one pickle of arrays, tensors and plain containers; else it is refused, not run.

    `name` says in a refusal what was read, instead of the file's own name; `further` holds
    stand-ins for the classes that this kind of file has besides, by module and name.
    """
    name = name or str(getattr(file, "name", "the pickle"))
    try:
        return _SafeUnpickler(file, further).load()
    except _NotAdmittedError as asked:
        raise DataError(
            f"{name}: refused, since the pickle asks for {asked}; only numpy arrays, torch tensors "
            "and plain containers are read, and nothing of this file was run. Get the file from "
            "its publisher again, or rewrite it with arrays only."
        ) from None
    # A damaged pickle stops with almost any exception: struct.error, IndexError, MemoryError, ...
    except Exception as error:
        raise DataError(
            f"{name}: not a readable pickle of arrays ({type(error).__name__}: {error}). "
            "The file is damaged or of another kind; get it again."
        ) from error


def load_npy_object(path: Path) -> object:
    """Read the Python object that `numpy.save(path, object)` put into a .npy file."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            else:
                shape, _, dtype = np.lib.format.read_array_header_2_0(file)
            if shape != () or dtype != np.dtype(object):
                raise DataError(
                    f"{path}: holds an array of shape {shape} and type {dtype}; expected a "
                    "single pickled object, as numpy.save writes a dict"
                )
            array = load_pickle(file)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, ValueError, SyntaxError, TokenError) as error:
        raise DataError(
            f"{path}: not a readable .npy file ({error}). It is damaged or of another kind; get it "
            "again."
        ) from error
    if not isinstance(array, np.ndarray) or array.shape != ():
        raise DataError(f"{path}: the pickle inside does not hold the array that the header says")
    return array.item()
