"""Values of members by suffix; damage is a DataError, and nothing is unpickled."""

import io
import pickle
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.streams.fields import check_fields, decode_field, decode_fields
from overt.errors import DataError

from .shard_files import npy, png


def test_values_by_suffix() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = {
        "png": png(7),
        "seg.png": png(9),
        "json": b'{"a": [1, 2]}',
        "txt": "grün".encode(),
        "cls": b" 12\n",
        "npy": npy(array),
        "bin": b"\x00\x01",
        "pkl": pickle.dumps(1),
    }
    sample = decode_fields(content, "000", "a.tar")
    assert list(sample) == ["__key__", "__shard__", *content]
    assert (sample["__key__"], sample["__shard__"]) == ("000", "a.tar")
    assert sample["png"].shape == (3, 3, 4)
    assert sample["png"].dtype == torch.uint8
    assert sample["png"][:, 0, 0].tolist() == [7, 0, 248]
    assert sample["seg.png"][0, 0, 0] == 9
    assert sample["json"] == {"a": [1, 2]}
    assert (sample["txt"], sample["cls"]) == ("grün", 12)
    assert np.array_equal(sample["npy"], array)
    assert (sample["bin"], sample["pkl"]) == (content["bin"], content["pkl"])  # left as bytes


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3))
    return stream.getvalue()


HUGE = npy(np.ones(3)).replace(b"(3,)", b"(9" + b"9" * 17 + b",)", 1)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("jpg", b"not a picture"),
        ("json", b"{"),
        ("json", b"[" * 100_000),
        ("json", b"\xff"),
        ("txt", b"\xff\xfe\xff"),
        ("cls", b"3.5"),
        ("cls", b""),
        ("npy", b""),
        ("npy", npy(np.ones(30))[:-5]),
        ("npy", pickled()),
        ("npy", archive()),
        ("npy", HUGE),
    ],
)
def test_damaged_values_name_the_member(suffix: str, content: bytes) -> None:
    with pytest.raises(DataError, match=rf"a\.tar: 000\.{suffix}: not (valid {suffix}|a readable)"):
        decode_field(content, suffix, f"a.tar: 000.{suffix}")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.sampled_from(["npy", "json", "cls", "txt", "png", "jpg"]))
def test_no_content_raises_anything_else(content: bytes, suffix: str) -> None:
    for start in (b"", b"\x93NUMPY\x01\x00", npy(np.ones(2))[:60]):
        with suppress(DataError):
            decode_field(start + content, suffix, "name")


def test_missing_fields_are_named() -> None:
    check_fields(["jpg", "json"], ["json"], "000", "a.tar")
    check_fields(["jpg"], None, "000", "a.tar")
    with pytest.raises(
        DataError, match=r"a\.tar: the sample 000 has no cls, npy; it has jpg, json\. Write"
    ):
        check_fields(["json", "jpg"], ["cls", "jpg", "npy"], "000", "a.tar")
