"""SMPL's .pkl files: the same body as from .npz, without chumpy or scipy, and nothing is run."""

import copyreg
import os
import pickle
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python2_pickles import python2_dumps

from overt.errors import DataError
from overt.geometry.body import BodyFile
from overt.geometry.body_files import load_body
from overt.geometry.smpl_pickle import LARGEST_MATRIX, array_of, read_smpl_pickle

VERTICES, JOINTS, FACES, SHAPES = 11, 4, 6, 10
PACKAGES = ("chumpy", "scipy")


def body_arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    regressor = random.random((JOINTS, VERTICES)) * (random.random((JOINTS, VERTICES)) < 0.4)
    parents = np.array([2**32 - 1, 0, 1, 1], np.uint32)
    return {
        "v_template": random.standard_normal((VERTICES, 3)),
        "f": random.integers(0, VERTICES, (FACES, 3)).astype(np.uint32),
        "shapedirs": random.standard_normal((VERTICES, 3, SHAPES)),
        "posedirs": random.standard_normal((VERTICES, 3, 9 * (JOINTS - 1))),
        "J_regressor": regressor,
        "weights": random.random((VERTICES, JOINTS)),
        "kintree_table": np.stack([parents, np.arange(JOINTS, dtype=np.uint32)]),
    }


# --- files as chumpy and scipy write them --------------------------------------------------------


class State:
    """Pickles as an object of a class elsewhere, with what that class keeps of it."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)


def stand_for(module: str, name: str) -> type[State]:
    return type(name, (State,), {"__module__": module, "__reduce_ex__": reduced})


def reduced(self: State, protocol: int) -> Any:
    # As if derived from `object` alone, as the true ones look to a pickle.
    if protocol < 2:
        return copyreg._reconstructor, (type(self), object, None), self.__dict__
    return copyreg.__newobj__, (type(self),), self.__dict__


Ch = stand_for("chumpy.ch", "Ch")
Select = stand_for("chumpy.reordering", "Select")
Add = stand_for("chumpy.ch", "add")
CLASSES = {
    kind: stand_for(f"scipy.sparse.{kind[:3]}", kind) for kind in ("csc_matrix", "csr_matrix")
}


def ch(x: Any) -> State:
    return Ch(x=x, _dirty_vars={"x"}, _itr=None, _make_dense=False)


def select(whole: Any, key: Any) -> State:
    """What chumpy makes of `whole[key]`."""
    places = np.arange(whole.size).reshape(whole.shape)[key]
    return Select(a=ch(whole), idxs=places.ravel(), preferred_shape=places.shape)


def compressed(matrix: Any, kind: str, spare: int = 0) -> State:
    lines = matrix.T if kind == "csc_matrix" else matrix
    line, place = np.nonzero(lines)
    ends = np.concatenate([[0], np.cumsum(np.bincount(line, minlength=len(lines)))])
    return CLASSES[kind](
        _shape=matrix.shape,
        data=np.pad(lines[line, place], (0, spare), constant_values=7.0),
        indices=np.pad(place, (0, spare)).astype(np.int32),
        indptr=ends.astype(np.int32),
        maxprint=50,
        format=kind[:3],
    )


def published(**other: Any) -> dict[str, Any]:
    """The dict of SMPL 1.0, entries beside the body among them."""
    arrays = body_arrays()
    return arrays | {
        "v_template": ch(arrays["v_template"]),
        "shapedirs": ch(arrays["shapedirs"]),
        "posedirs": ch(arrays["posedirs"]),
        "weights": ch(arrays["weights"]),
        "J_regressor": compressed(arrays["J_regressor"], "csc_matrix"),
        "J_regressor_prior": compressed(arrays["J_regressor"], "csc_matrix"),
        "J": np.zeros((JOINTS, 3)),
        "vert_sym_idxs": np.arange(VERTICES),
        "bs_type": "lrotmin",
        "bs_style": "lbs",
        "scale": np.float64(1.5),
        **other,
    }


def dumps(content: Any, protocol: int = 2) -> bytes:
    """A pickle of Python 2 where it had the protocol."""
    kinds = (Ch, Select, Add, *CLASSES.values())
    names = {*PACKAGES, "scipy.sparse", *(kind.__module__ for kind in kinds)}
    modules = {name: ModuleType(name) for name in names}
    for kind in kinds:
        setattr(modules[kind.__module__], kind.__name__, kind)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        return (python2_dumps if protocol <= 2 else pickle.dumps)(content, protocol)


@pytest.fixture(autouse=True)
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if neither were installed."""
    for name in [*PACKAGES, *(one for one in sys.modules if one.startswith("scipy."))]:
        monkeypatch.setitem(sys.modules, name, None)


def load(folder: Path, data: bytes) -> BodyFile:
    path = folder / "SMPL_NEUTRAL.pkl"
    path.write_bytes(data)
    return load_body(str(path), "model.body.smpl")


def load_npz(folder: Path, arrays: dict[str, Any]) -> BodyFile:
    path = folder / "SMPL_NEUTRAL.npz"
    np.savez(path, **arrays)
    return load_body(str(path), "model.body.smpl")


def assert_same(one: BodyFile, other: BodyFile) -> None:
    for field in fields(BodyFile):
        found, expected = getattr(one, field.name), getattr(other, field.name)
        np.testing.assert_array_equal(found, expected, field.name, strict=expected is not None)


# --- the same body -------------------------------------------------------------------------------


def test_the_pickles_of_these_tests_are_those_of_python_2() -> None:
    for protocol in (0, 2):
        data = dumps(published(), protocol)
        for name in (b"chumpy.ch\nCh\n", b"scipy.sparse.csc\ncsc_matrix\n", b"numpy.core.multi"):
            assert b"c" + name in data
        assert b"_codecs" not in data  # how Python 3 marks bytes
        with pytest.raises(ModuleNotFoundError):
            pickle.loads(data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_body_is_that_of_the_npz_file(tmp_path: Path, protocol: int) -> None:
    expected = load_npz(tmp_path, body_arrays())
    assert_same(load(tmp_path, dumps(published(), protocol)), expected)
    assert expected.parents == (-1, 0, 1, 1)
    np.testing.assert_array_equal(expected.shapedirs, np.float32(body_arrays()["shapedirs"]))
    assert not any(sys.modules.get(name) for name in PACKAGES)


def test_the_first_columns_of_a_longer_shape_space(tmp_path: Path) -> None:
    whole = np.random.default_rng(1).standard_normal((VERTICES, 3, 30))
    chosen = select(whole, (slice(None), slice(None), slice(SHAPES)))
    body = load(tmp_path, dumps(published(shapedirs=chosen)))
    assert_same(body, load_npz(tmp_path, body_arrays() | {"shapedirs": whole[..., :SHAPES]}))
    # A selection of one, and one without a shape of its own.
    places = np.array([3, 0, 3])
    flat = Select(a=Select(a=ch(whole), idxs=np.arange(5, 10)), idxs=places)
    (tmp_path / "a.pkl").write_bytes(dumps({"flat": flat}))
    content = read_smpl_pickle(tmp_path / "a.pkl", "a.pkl")
    np.testing.assert_array_equal(array_of(content["flat"]), whole.ravel()[5:10][places])


@pytest.mark.parametrize("kind", CLASSES)
def test_sparse_matrices(tmp_path: Path, kind: str) -> None:
    expected = load_npz(tmp_path, body_arrays())
    matrix = compressed(body_arrays()["J_regressor"], kind, spare=3)
    assert_same(load(tmp_path, dumps(published(J_regressor=matrix))), expected)


@pytest.fixture(scope="module")
def written_by_scipy() -> dict[str, bytes]:
    sparse = pytest.importorskip("scipy.sparse")
    arrays = body_arrays()
    return {
        kind: pickle.dumps(arrays | {"J_regressor": getattr(sparse, kind)(arrays["J_regressor"])})
        for kind in CLASSES
    }


@pytest.mark.parametrize("kind", CLASSES)
def test_sparse_matrices_that_scipy_itself_wrote(
    written_by_scipy: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    assert f"scipy.sparse._{kind[:3]}".encode() in written_by_scipy[kind]
    body = load(tmp_path, written_by_scipy[kind])
    assert_same(body, load_npz(tmp_path, body_arrays()))


def test_entries_at_one_place_add_up(tmp_path: Path) -> None:
    matrix = CLASSES["csc_matrix"](
        _shape=(2, 1), data=np.array([1.0, 2.0, 4.0]), indices=np.array([0, 1, 0]),
        indptr=np.array([0, 3]),
    )  # fmt: skip
    (tmp_path / "a.pkl").write_bytes(dumps({"matrix": matrix}))
    content = read_smpl_pickle(tmp_path / "a.pkl", "a.pkl")
    assert array_of(content["matrix"]).tolist() == [[5.0], [2.0]]


def test_hands_come_with_a_file_of_smplx(tmp_path: Path) -> None:
    more = {"hands_meanl": np.arange(45.0), "hands_meanr": -np.arange(45.0)}
    body = load(tmp_path, pickle.dumps(body_arrays() | more | {"joint2num": {"pelvis": 0}}))
    assert_same(body, load_npz(tmp_path, body_arrays() | more))
    assert body.hands_mean is not None
    assert body.hands_mean[1, 0].tolist() == [0, -1, -2]


# --- refused -------------------------------------------------------------------------------------


class Run:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("where", ["alone", "as an entry", "as numbers", "in a matrix"])
def test_a_hostile_file_is_refused_and_not_run(tmp_path: Path, protocol: int, where: str) -> None:
    victim = tmp_path / "created"
    hostile = Run(f"touch {victim}")
    content = {
        "alone": hostile,
        "as an entry": published(bs_style=hostile),
        "as numbers": published(v_template=ch(hostile)),
        "in a matrix": published(J_regressor=CLASSES["csc_matrix"](data=hostile)),
    }[where]
    with pytest.raises(DataError) as refusal:
        load(tmp_path, dumps(content, protocol))
    message = r"model\.body\.smpl=.*SMPL_NEUTRAL\.pkl: refused.*asks for \w+\.system; only numpy"
    assert re.search(message, str(refusal.value))
    assert "convert the file once, by numpy.savez with the arrays v_template" in str(refusal.value)
    assert not victim.exists()
    if where == "alone":
        pickle.loads(dumps(content, protocol))  # the trap works where it is trusted
        assert victim.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_other_classes_of_chumpy_are_refused_by_name(tmp_path: Path, protocol: int) -> None:
    data = dumps(published(posedirs=Add(a=ch(np.ones(3)), b=ch(np.ones(3)))), protocol)
    with pytest.raises(DataError, match=r"asks for chumpy\.ch\.add.*convert the file once"):
        load(tmp_path, data)


def sparse_with(**changes: Any) -> dict[str, Any]:
    matrix = compressed(body_arrays()["J_regressor"], "csc_matrix")
    matrix.__dict__.update(changes)
    return published(J_regressor=matrix)


def in_a_circle() -> State:
    one = Select(idxs=np.arange(3))
    one.__dict__["a"] = one
    return one


ENDS = compressed(body_arrays()["J_regressor"], "csc_matrix").__dict__["indptr"]
DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no state": (published(weights=Ch()), "weights is not readable"),
    "text": (published(weights=ch("many")), "weights is not readable.*str in place of an array"),
    "array of text": (published(weights=np.array(["a"])), "weights.*array of numbers"),
    "objects": (published(weights=np.array([None, 1])), "weights.*array of numbers"),
    "a circle": (published(shapedirs=in_a_circle()), "shapedirs is not readable"),
    "places outside": (
        published(shapedirs=Select(a=ch(np.ones(3)), idxs=np.array([3]))), "shapedirs.*IndexError"
    ),
    "another shape": (
        published(shapedirs=Select(a=ch(np.ones(3)), idxs=np.arange(3), preferred_shape=(9, 9))),
        "shapedirs is not readable",
    ),
    "a huge matrix": (sparse_with(_shape=(2**40, 2**40)), "a matrix of 1099511627776 x"),
    "just too large": (sparse_with(_shape=(LARGEST_MATRIX + 1, 1)), "a matrix of"),
    "negative size": (sparse_with(_shape=(-JOINTS, VERTICES)), "a matrix of"),
    "no size": (sparse_with(_shape=None), "J_regressor is not readable"),
    "ends that fall": (sparse_with(indptr=ENDS[::-1]), "layout that scipy does not write"),
    "unsigned ends that fall": (
        sparse_with(indptr=np.append(0, ENDS[:0:-1]).astype(np.uint64)), "scipy does not write"
    ),
    "ends past the data": (
        sparse_with(indptr=np.append(ENDS[:-1], 2**50)), "layout that scipy does not write"
    ),
    "too few ends": (sparse_with(indptr=ENDS[:-1]), "layout that scipy does not write"),
    "negative rows": (sparse_with(indices=-np.ones(20, np.int32)), "scipy does not write"),
    "rows past the end": (
        sparse_with(indices=np.full(ENDS[-1], JOINTS)), "J_regressor.*IndexError"
    ),
    "other vertices": (
        published(weights=ch(np.ones((5, JOINTS)))),
        r"shape of weights is \(5, 4\), but a body of 11 vertices and 4 joints has \(11, 4\)",
    ),
    "no vertices": (published(v_template=np.zeros((0, 3))), "but a body of 0 vertices"),
    "flat tree": (published(kintree_table=np.zeros(8)), r"shape of kintree_table is \(8,\)"),
    "without faces": (
        {name: value for name, value in published().items() if name != "f"},
        "a body model has f too; this file has v_template, shapedirs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_body_is_refused_with_what_was_found(tmp_path: Path, name: str) -> None:
    content, message = DAMAGED[name]
    with pytest.raises(DataError, match=message) as refusal:
        load(tmp_path, dumps(content))
    assert "model.body.smpl=" in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "kind"), [([1, 2], "list"), (None, "NoneType"), (ch(np.ones(3)), "one matrix")]
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: Any, kind: str) -> None:
    with pytest.raises(DataError, match=rf"expected a dict of arrays, got {kind}\. A body model"):
        load(tmp_path, dumps(content))


@pytest.mark.parametrize("state", [b"(I1\nI2\nt", b"N", b"cnumpy\ndtype\n"])
def test_a_state_that_is_no_dict_is_refused(tmp_path: Path, state: bytes) -> None:
    # PROTO, GLOBAL, EMPTY_TUPLE, NEWOBJ, the state, BUILD, STOP.
    with pytest.raises(DataError, match="as its state"):
        load(tmp_path, b"\x80\x02cchumpy.ch\nCh\n)\x81" + state + b"b.")


def test_a_state_changes_no_attribute(tmp_path: Path) -> None:
    numbers = Ch(x=np.ones(2), array=None, state=None)
    numbers.__dict__["__class__"] = "other"
    (tmp_path / "a.pkl").write_bytes(dumps({"numbers": numbers}))
    content = read_smpl_pickle(tmp_path / "a.pkl", "a.pkl")
    assert array_of(content["numbers"]).tolist() == [1, 1]
    # GLOBAL of the class itself, a dict, BUILD: a trusting reader would update the class.
    data = b"cchumpy.ch\nCh\n}(S'state'\nNub."
    with pytest.raises(DataError, match="state for an object of class type"):
        load(tmp_path, data)


@pytest.mark.parametrize("base", [b"cnumpy\ndtype\n", b"cchumpy.ch\nCh\n"])
def test_objects_of_protocol_0_are_made_of_object_only(tmp_path: Path, base: bytes) -> None:
    data = b"ccopy_reg\n_reconstructor\n(cchumpy.ch\nCh\n" + base + b"NtR."
    with pytest.raises(DataError, match="object made from"):
        load(tmp_path, data)


def test_other_objects_of_protocol_0_are_refused(tmp_path: Path) -> None:
    data = b"ccopy_reg\n_reconstructor\n(c__builtin__\nset\nc__builtin__\nobject\nNtR."
    with pytest.raises(DataError, match="object of class <class 'set'>"):
        load(tmp_path, data)


@pytest.mark.parametrize("protocol", [0, 2])
def test_every_cut_through_a_file_is_refused(tmp_path: Path, protocol: int) -> None:
    whole = dumps(published(), protocol)
    for length in [*range(0, len(whole), len(whole) // 60), len(whole) - 1]:
        # A cut through a name leaves one that is not admitted.
        with pytest.raises(DataError, match=r"\.pkl: (not a readable pickle|refused).*[Gg]et "):
            load(tmp_path, whole[:length])


WHOLE = dumps(published())


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    data = bytearray(WHOLE)
    data[place] = value
    try:
        load(tmp_path_factory.getbasetemp(), bytes(data))
    except DataError:
        return  # any other exception fails the test
