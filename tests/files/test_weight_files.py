"""overt/files/weight_files.py: what engine and recipes share in reading files of others."""

import argparse
import contextlib
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forged_pickles import ARRAYS, FORGERIES, Forged, same
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from overt.errors import CheckpointError
from overt.files.pickles import CheckedArray
from overt.files.weight_files import (
    CONTAINERS,
    WRAPPERS,
    clean_key,
    clean_keys,
    find_weights,
    is_safetensors,
    read_safetensors,
    read_torch_file,
)

PLAIN = st.lists(st.sampled_from(["a", "submodule", "0", "module_x", "weight"]), min_size=1)


@given(parts=PLAIN, data=st.data())
def test_wrappers_go_wherever_they_stand_and_nothing_else_does(
    parts: list[str], data: st.DataObject
) -> None:
    wrapped = list(parts)
    for name in data.draw(st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=4)):
        wrapped.insert(data.draw(st.integers(0, len(wrapped) - 1)), name)
    assert clean_key(".".join(wrapped)) == ".".join(parts)


def test_two_keys_never_become_one() -> None:
    with pytest.raises(CheckpointError, match=r"^file: the keys a and module\.a both become a "):
        clean_keys(["a", "module.a"], "file")


def test_containers_are_searched_in_the_order_given() -> None:
    one, other = {"a": torch.ones(1)}, {"b": torch.ones(1)}
    content = {"model": one, "state_dict": {"model": other}, "epoch": 3}
    tensors, rest = find_weights(content, Path("x"))
    assert tensors.keys() == {"a"}
    assert rest["epoch"] == 3
    assert find_weights(content, Path("x"), ("state_dict", "model"))[0].keys() == {"b"}
    with pytest.raises(
        CheckpointError, match=rf"nor under {', '.join(CONTAINERS)}; it has teacher"
    ):
        find_weights({"teacher": one}, Path("x"))
    with pytest.raises(CheckpointError, match="holds a list"):
        find_weights([1], Path("x"))


@pytest.mark.parametrize("model", [{}, {"name": "vit", "encoder": {"depth": 12}}])
def test_a_configuration_with_the_name_of_a_container_is_skipped(model: dict[str, Any]) -> None:
    weights = {"a": torch.ones(1)}
    for content in (
        {"model": model, "state_dict": {"model": weights}},
        {"model": model, **weights},
    ):
        tensors, rest = find_weights(content, Path("x"))
        assert tensors == weights
        assert rest["model"] == model
    with pytest.raises(CheckpointError, match="holds no tensors"):
        find_weights({"model": model}, Path("x"))


def test_several_state_dicts_side_by_side_become_one() -> None:
    optimizer = {"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]}
    content = {
        "encoder": {"module.a": torch.zeros(1)},
        "target_encoder": {"module.a": torch.ones(1)},
        "opt": optimizer,
        "empty": {},
        "epoch": 3,
    }
    tensors, rest = find_weights(content, Path("x"))
    assert tensors == {
        "encoder.module.a": torch.zeros(1),
        "target_encoder.module.a": torch.ones(1),
    }
    assert rest.keys() == {"opt", "empty", "epoch"}
    # Weights at the top level are the model, whatever stands beside them.
    assert find_weights(content | {"a": torch.ones(1)}, Path("x"))[0].keys() == {"a"}


def test_formats_are_told_apart_by_content(tmp_path: Path) -> None:
    weights = {"a": torch.arange(3.0)}
    save_file(weights, tmp_path / "one", metadata={"overt.tied": '{"b": "a"}'})
    torch.save(weights, tmp_path / "two")
    assert is_safetensors(tmp_path / "one")
    assert not is_safetensors(tmp_path / "two")
    tensors, metadata = read_safetensors(tmp_path / "one")
    assert torch.equal(tensors["b"], weights["a"])  # tied names come back
    assert "overt.tied" in metadata
    assert torch.equal(read_torch_file(tmp_path / "two")["a"], weights["a"])
    with pytest.raises(CheckpointError, match="Nothing of it was run"):
        read_torch_file(tmp_path / "one")


@pytest.mark.parametrize("read", [read_torch_file, read_safetensors])
def test_what_downloads_leave_in_the_place_of_weights_is_named(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match="run `git lfs pull`"):
        read(path)
    path.write_text("\n<!DOCTYPE html><html>Log in</html>")
    with pytest.raises(CheckpointError, match="is a web page"):
        read(path)


VALUES = {
    "float64": np.float64(0.5),
    "int64": np.int64(-3),
    "bool": np.bool_(True),
    "text": np.str_("abc"),
    **{f"array of {name}": array for name, array in ARRAYS.items() if name != "objects"},
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_values_of_numpy_come_back_as_they_were(name: str, zipped: bool, tmp_path: Path) -> None:
    content = {
        "value": VALUES[name],
        "deep": [{"value": (VALUES[name], 1)}, argparse.Namespace(value=VALUES[name])],
        "a": torch.ones(1),
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    loaded = read_torch_file(tmp_path / "a.pt")
    deep = loaded["deep"]
    for value in (loaded["value"], deep[0]["value"][0], deep[1].value):
        assert same(value, VALUES[name])
        assert type(value) is type(VALUES[name])


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_values_of_numpy_1_and_numpy_2(core: str, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1), "x": np.arange(3), "y": np.float32(2)}, tmp_path / "now.pt")
    with zipfile.ZipFile(tmp_path / "now.pt") as now, zipfile.ZipFile(tmp_path / "a", "w") as then:
        for entry in now.namelist():
            content = now.read(entry)
            if entry.endswith("data.pkl"):
                content = re.sub(rb"numpy\._?core", core.encode(), content)
            then.writestr(entry, content)
    loaded = read_torch_file(tmp_path / "a")
    assert loaded["x"].tolist() == [0, 1, 2]
    assert loaded["y"] == 2


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", FORGERIES)
def test_forged_values_of_numpy_are_refused(name: str, zipped: bool, tmp_path: Path) -> None:
    content = {"a": torch.ones(1), "x": FORGERIES[name]}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="Nothing of it was run"):
        read_torch_file(tmp_path / "a.pt")


def test_a_file_cannot_make_the_arrays_that_stand_in(tmp_path: Path) -> None:
    forged = Forged(CheckedArray, ((1,), "O", b"\x41" * 8))
    torch.save({"a": torch.ones(1), "x": forged}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="array that numpy did not write"):
        read_torch_file(tmp_path / "a.pt")


@pytest.mark.parametrize("record", ["data.pkl", "data/0"])
def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, record: str) -> None:
    plain, path = tmp_path / "plain.pt", tmp_path / "bomb.pt"
    torch.save({"w": torch.zeros(3)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as archive:
        for entry in source.infolist():
            is_bomb = entry.filename.endswith(record)
            data = bytes(2**22) if is_bomb else source.read(entry)
            archive.writestr(entry.filename, data, zipfile.ZIP_DEFLATED if is_bomb else None)
    with pytest.raises(CheckpointError, match=r"compressed archive that would unpack to 4,\d+,"):
        read_torch_file(path)


def test_a_sparse_file_of_a_hundred_gigabytes_ends_in_words(tmp_path: Path) -> None:
    size = 100 * 2**30
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}})
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    os.truncate(path, path.stat().st_size + size)
    try:
        with contextlib.suppress(CheckpointError):  # where the system maps no such file
            tensors, _ = read_safetensors(path)
            assert tensors["w"].numel() == size // 4  # mapped, not read
    finally:
        path.unlink()
    path = tmp_path / "weights.pt"
    path.touch()
    os.truncate(path, size)
    with pytest.raises(CheckpointError, match="neither a safetensors file nor"):
        read_torch_file(path)
    path.unlink()


def test_exported_models_are_refused_by_their_kind(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "weights.pt")
    (tmp_path / "weights.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    for name, kind in (("weights.pt", "TorchScript"), ("weights.onnx", "ONNX")):
        with pytest.raises(CheckpointError, match=rf"exported model \({kind}\), not a checkpoint"):
            read_torch_file(tmp_path / name)
    torch.save({"w": torch.zeros(3)}, tmp_path / "code.pt")  # its entries are code/data.pkl, ...
    assert "w" in read_torch_file(tmp_path / "code.pt")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_torch_file, is_safetensors):
        with pytest.raises(CheckpointError, match="neither a file nor a folder"):
            read(tmp_path / "pipe")
