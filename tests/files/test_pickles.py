"""Arrays come back as they were; anything that would run is refused and does not run."""

import collections
import contextlib
import io
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from forged_pickles import ARRAYS, FORGERIES, Forged, same
from hypothesis import given, settings
from hypothesis import strategies as st
from python2_pickles import python2_dumps

from overt.errors import DataError
from overt.files.pickles import PickledState, load_npy_object, load_pickle


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_kind_and_protocol(name, protocol):
    data = pickle.dumps({"array": ARRAYS[name]}, protocol=protocol)
    loaded = load_pickle(io.BytesIO(data))
    assert same(loaded["array"], ARRAYS[name])
    assert type(loaded["array"]) is np.ndarray


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_containers_and_scalars(protocol):
    content = {
        "scalar": np.float32(1.5),
        "flag": np.bool_(True),
        "list": [1, 2.5, None, True, "text", b"bytes \xff", (1, (2,))],
        "set": {1, 2},
        "frozen": frozenset({3}),
        "ordered": collections.OrderedDict(b=1, a=2),
    }
    assert load_pickle(io.BytesIO(pickle.dumps(content, protocol=protocol))) == content


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
def test_pickles_of_numpy_1_and_numpy_2(core):
    # The two differ in the name of the module, which protocol 2 writes without its length.
    def written(value):
        return re.sub(rb"numpy\._?core", core, pickle.dumps(value, protocol=2))

    integers, number = load_pickle(io.BytesIO(written([np.arange(3), np.float64(2)])))
    assert integers.tolist() == [0, 1, 2]
    assert number == 2.0
    # What protocol 5 writes: GLOBAL, MARK, the four arguments, TUPLE, REDUCE, STOP.
    arguments = (b"\1\0\2\0", np.dtype("<i2"), (2,), "C")
    bodies = b"".join(written(argument)[2:-1] for argument in arguments)
    data = b"c" + core + b".numeric\n_frombuffer\n(" + bodies + b"tR."
    assert load_pickle(io.BytesIO(data)).tolist() == [1, 2]


@pytest.mark.parametrize("protocol", range(3))
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_python_2(name, protocol):
    content = {"array": ARRAYS[name], "scalar": np.float64(-2e300), "name": "é"}
    data = python2_dumps(content, protocol)
    assert b"_codecs" not in data  # how Python 3 writes bytes
    loaded = load_pickle(io.BytesIO(data))
    assert same(loaded, content)


class Thing:
    def __init__(self):
        self.numbers = np.arange(3)


class StandIn(PickledState):
    """Takes the place of `Thing`."""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_further_classes_are_only_those_named_and_only_their_state(protocol):
    data = pickle.dumps([Thing()], protocol=protocol)
    further = {(Thing.__module__, "Thing"): StandIn}
    (loaded,) = load_pickle(io.BytesIO(data), further=further)
    assert type(loaded) is StandIn
    assert vars(loaded).keys() == {"state"}
    assert loaded.state["numbers"].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"asks for .*\.Thing; only numpy arrays"):
        load_pickle(io.BytesIO(data))
    assert StandIn().state == {}


class Touch:
    """Unpickled by a trusting reader, this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


class Run:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("where", ["alone", "in an array"])
def test_hostile_pickle_is_refused_and_not_run(tmp_path, protocol, where):
    victim = tmp_path / "created"
    hostile = Run(f"touch {victim}")
    content = hostile if where == "alone" else np.array([hostile], dtype=object)
    path = tmp_path / "hostile.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    with path.open("rb") as file, pytest.raises(DataError) as refusal:
        load_pickle(file)
    assert str(path) in str(refusal.value)
    assert "system" in str(refusal.value)
    assert not victim.exists()


def test_hostile_npy_names_file_and_class(tmp_path):
    victim = tmp_path / "created"
    path = tmp_path / "hostile.npy"
    np.save(path, np.array({"coords": Touch(victim)}, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"hostile\.npy.*pathlib"):
        load_npy_object(path)
    assert not victim.exists()
    np.load(path, allow_pickle=True)  # the trap works where it is trusted
    assert victim.exists()


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_state_is_refused(name):
    with pytest.raises(DataError):
        load_pickle(io.BytesIO(pickle.dumps(FORGERIES[name], protocol=4)))


def test_attributes_of_an_admitted_name_cannot_be_set():
    # GLOBAL numpy dtype, an empty dict, BUILD: a trusting reader would update the attributes.
    data = b"cnumpy\ndtype\n}(S'__defaults__'\n(tub."
    with pytest.raises(DataError, match="state for an object"):
        load_pickle(io.BytesIO(data))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damage_is_refused_or_harmless(place, value):
    data = bytearray(pickle.dumps({"array": np.arange(4.0), "name": "x"}, protocol=4))
    cut = place % len(data)
    with pytest.raises(DataError):
        load_pickle(io.BytesIO(bytes(data[:cut])))
    data[cut] = value
    try:
        load_pickle(io.BytesIO(bytes(data)))
    except DataError:
        return  # any other exception fails the test


def test_npy_object_roundtrip(tmp_path):
    content = {"coords": np.ones((2, 3, 2), np.float32), "note": "text"}
    np.save(tmp_path / "a.npy", content, allow_pickle=True)
    assert same(load_npy_object(tmp_path / "a.npy"), content)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b""), "not a readable .npy"),
        (lambda path: path.write_bytes(b"PNG, say, or anything else"), "not a readable .npy"),
        (
            lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\x01\x00{" + bytes(99)),
            "not a readable",
        ),
        (lambda path: np.save(path, np.zeros(3)), "shape"),
        (lambda path: np.save(path, np.array([None, None]), allow_pickle=True), "shape"),
    ],
)
def test_wrong_npy_files(tmp_path, write, message):
    path = tmp_path / "a.npy"
    write(path)
    with pytest.raises(DataError, match=message):
        load_npy_object(path)


# --- tensors -------------------------------------------------------------------------------------

WHOLE = torch.arange(24.0).reshape(2, 3, 4)
TENSORS = {
    "float32": WHOLE,
    "row with a leading one": WHOLE[1:, 0],
    "zero-dimensional": torch.tensor(2.5),
    "transposed": WHOLE.transpose(0, 2),
    "strided": WHOLE[:, ::2, 1::2],
    "expanded": torch.arange(3).expand(2, 3),
    "empty": torch.zeros(0, 4),
    **{str(kind): torch.ones(3, dtype=kind) for kind in (
        torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
        torch.bool, torch.complex64,
    )},
}  # fmt: skip


def storage_file(tensor, zipped=False):
    file = io.BytesIO()
    torch.save(tensor._typed_storage(), file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def stored(data, offset=0, size=(3,), stride=(1,)):
    """Pickles to what torch writes for a tensor, with a storage of one's choice."""
    storage = Forged(torch.storage._load_from_bytes, (data,))
    hooks = collections.OrderedDict()
    return Forged(torch._utils._rebuild_tensor_v2, (storage, offset, size, stride, False, hooks))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_every_kind_and_protocol(name, protocol):
    tensor = TENSORS[name]
    loaded = load_pickle(io.BytesIO(pickle.dumps([tensor], protocol=protocol)))[0]
    assert type(loaded) is torch.Tensor
    assert loaded.dtype == tensor.dtype
    assert loaded.stride() == tensor.stride()
    torch.testing.assert_close(loaded, tensor, rtol=0, atol=0)


def test_parameters_and_tensors_with_gradients_are_data():
    content = [torch.nn.Parameter(WHOLE), WHOLE.clone().requires_grad_()]
    for loaded in load_pickle(io.BytesIO(pickle.dumps(content))):
        assert type(loaded) is torch.Tensor
        assert not loaded.requires_grad
        assert loaded.equal(WHOLE)


@pytest.mark.parametrize("zipped", [False, True])
def test_storages_of_both_forms_of_torch_save(zipped):
    data = pickle.dumps(stored(storage_file(torch.arange(3.0), zipped)))
    assert load_pickle(io.BytesIO(data)).tolist() == [0, 1, 2]


def test_a_tensor_from_a_gpu_comes_to_the_cpu():
    data = storage_file(torch.arange(3.0))
    there = data.replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:0")
    assert there != data
    loaded = load_pickle(io.BytesIO(pickle.dumps(stored(there))))
    assert loaded.device == torch.device("cpu")
    assert loaded.tolist() == [0, 1, 2]


def test_npy_object_with_tensors(tmp_path):
    rows = np.empty(2, dtype=object)
    rows[:] = [WHOLE[0], WHOLE[1]]
    np.save(tmp_path / "a.npy", {"rows": rows, "list": [WHOLE]}, allow_pickle=True)
    loaded = load_npy_object(tmp_path / "a.npy")
    assert all(loaded["rows"][row].equal(WHOLE[row]) for row in range(2))
    assert loaded["list"][0].equal(WHOLE)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_object_beside_tensors_is_refused_and_not_run(tmp_path, protocol):
    victim = tmp_path / "created"
    data = pickle.dumps({"pose": [WHOLE], "shape": Run(f"touch {victim}")}, protocol=protocol)
    with pytest.raises(DataError, match=r"asks for \w+\.system; only numpy arrays, torch tensors"):
        load_pickle(io.BytesIO(data))
    assert not victim.exists()


@pytest.mark.parametrize("form", ["a pickle", "torch.save", "torch.save, zipped"])
def test_a_hostile_storage_is_refused_and_not_run(tmp_path, form):
    victim = tmp_path / "created"
    hostile = Run(f"touch {victim}")
    file = io.BytesIO()
    if form == "a pickle":
        pickle.dump(hostile, file, protocol=2)
    else:
        zipped = form == "torch.save, zipped"
        torch.save(hostile, file, _use_new_zipfile_serialization=zipped)
    data = pickle.dumps({"pose": [stored(file.getvalue())]})
    with pytest.raises(DataError, match=r"refused, since the pickle asks for \w+\.system"):
        load_pickle(io.BytesIO(data))
    assert not victim.exists()
    with contextlib.suppress(Exception):
        pickle.loads(data)  # the trap works where it is trusted
    assert victim.exists()


THREE = storage_file(torch.ones(3))
FORGED_TENSORS = {
    "more numbers than stored": stored(THREE, size=(4,)),
    "offset past the end": stored(THREE, offset=1),
    "stride past the end": stored(THREE, stride=(2,)),
    "size past all integers": stored(THREE, size=(2**62, 2**62), stride=(4, 4)),
    "negative stride": stored(THREE, offset=2, stride=(-1,)),
    "negative offset": stored(THREE, offset=-1),
    "text as size": stored(THREE, size="3"),
    "size without stride": stored(THREE, stride=()),
    "tensor as storage": Forged(
        torch._utils._rebuild_tensor_v2, (WHOLE, 0, (3,), (1,), False, collections.OrderedDict())
    ),
    "storage of something else": stored(pickle.dumps({}, protocol=2)),
    "no storage": stored(b""),
    "state of a tensor": Forged(
        torch._utils._rebuild_tensor_v2, (WHOLE._typed_storage(), 0, (3,), (1,)), {"a": 1}
    ),
}


@pytest.mark.parametrize("name", FORGED_TENSORS)
def test_forged_tensors_are_refused(name):
    with pytest.raises(DataError):
        load_pickle(io.BytesIO(pickle.dumps(FORGED_TENSORS[name])))


def test_every_cut_through_a_tensor_is_refused():
    whole = pickle.dumps([WHOLE])
    for length in range(0, len(whole), 7):
        with pytest.raises(DataError):
            load_pickle(io.BytesIO(whole[:length]))
    for length in range(0, len(THREE), 7):
        with pytest.raises(DataError):
            load_pickle(io.BytesIO(pickle.dumps(stored(THREE[:length]))))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damage_to_a_tensor_is_refused_or_harmless(place, value):
    data = bytearray(pickle.dumps([torch.arange(4.0)]))
    data[place % len(data)] = value
    try:
        load_pickle(io.BytesIO(bytes(data)))
    except DataError:
        return  # any other exception fails the test
