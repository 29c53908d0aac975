"""Pickles as Python 2 and numpy 1 wrote them: their texts and bytes are one, marked as neither."""

import io
import pickle
import re
import struct
from typing import Any, ClassVar


def save_text(pickler: Any, value: str | bytes) -> None:
    data = value.encode("latin1") if isinstance(value, str) else value
    if pickler.proto == 0:
        pickler.write(pickle.STRING + repr(data)[1:].encode() + b"\n")
    else:
        pickler.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
    pickler.memoize(value)


class Python2Pickler(pickle._Pickler):
    dispatch: ClassVar[Any] = {**pickle._Pickler.dispatch, str: save_text, bytes: save_text}


def python2_dumps(content: Any, protocol: int = 2) -> bytes:
    """The pickle that Python 2 made of it, by protocol 0, 1 or 2."""
    assert protocol <= 2
    file = io.BytesIO()
    Python2Pickler(file, protocol).dump(content)
    # Up to protocol 2 the names of modules stand there without their length.
    return re.sub(rb"numpy\._core\.", b"numpy.core.", file.getvalue())
