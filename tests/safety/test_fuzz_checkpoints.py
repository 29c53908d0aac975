"""Fuzz: manifests, states and tensor files either parse or are refused, whoever wrote them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import JSON, examples, parses_or_refuses, spoilt
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from overt.checkpoint import plain_values
from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.manifest import MANIFEST, hash_of, verify
from overt.checkpoint.reading import read_tensors
from overt.checkpoint.tensor_files import checksum_file, read_header
from overt.files.weight_files import read_safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return CheckpointManager(tmp_path, metric_name=None).save_checkpoint(0, nn.Linear(2, 2), step=1)


def read_everything(folder: Path) -> None:
    """What resume and inspection do with a folder."""
    manager = CheckpointManager(folder.parent, metric_name=None)
    manager.get_latest_checkpoint()
    verify(folder)
    manager.load_checkpoint(folder, nn.Linear(2, 2))


@contextmanager
def restored(folder: Path) -> Iterator[None]:
    """Afterwards the folder is what it was: hypothesis wants equal starts."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    try:
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def sign(folder: Path, manifest: Any) -> None:
    """Write a manifest whose own hash is right, as only someone who means it would."""
    if isinstance(manifest, dict):
        manifest["sha256"] = hash_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@examples(30)
@given(st.data())
def test_a_spoilt_manifest(folder: Path, data: st.DataObject) -> None:
    with restored(folder):
        file = folder / MANIFEST
        file.write_bytes(data.draw(spoilt(file.read_bytes())))
        parses_or_refuses(lambda: read_everything(folder))


@examples(40)
@given(st.data())
def test_a_forged_manifest(folder: Path, data: st.DataObject) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    key = data.draw(st.sampled_from(sorted(manifest)))
    if data.draw(st.booleans()):
        del manifest[key]
    else:
        manifest[key] = data.draw(JSON)
    if isinstance(manifest.get("files"), dict) and manifest["files"]:
        name = data.draw(st.sampled_from(sorted(manifest["files"])))
        other = data.draw(st.sampled_from((name, "../x", "/etc/passwd", "", ".", "a/b", "x\0y")))
        manifest["files"][other] = data.draw(JSON | st.just(manifest["files"][name]))
    with restored(folder):
        sign(folder, manifest)
        parses_or_refuses(lambda: read_everything(folder))


@examples(30)
@given(st.data())
def test_a_forged_state(folder: Path, data: st.DataObject) -> None:
    """The sums in the manifest are made to fit, so that only the state itself is wrong."""
    file = folder / "state.json"
    content = data.draw(spoilt(file.read_bytes()) | st.builds(_dumped, JSON))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    with restored(folder):
        file.write_bytes(content)
        crc = checksum_file(file)
        manifest["files"]["state.json"] = {"size": len(content), "crc32": crc}
        sign(folder, manifest)
        parses_or_refuses(lambda: read_everything(folder))


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@examples(80)
@given(st.binary(max_size=40) | st.builds(_dumped, JSON))
def test_plain_values(data: bytes) -> None:
    parses_or_refuses(lambda: plain_values.decode(data))


@examples(50)
@given(st.data())
def test_a_spoilt_tensor_file(tmp_path: Path, data: st.DataObject) -> None:
    from safetensors.torch import save

    good = save({"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)})
    file = tmp_path / "model.safetensors"
    file.write_bytes(data.draw(spoilt(good) | st.binary(max_size=64)))
    parses_or_refuses(lambda: read_safetensors(file))
    parses_or_refuses(lambda: read_header(file))


@examples(40)
@given(st.data())
def test_a_spoilt_torch_file(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "model.pth"
    torch.save({"weight": torch.arange(6.0).view(2, 3)}, file)
    file.write_bytes(data.draw(spoilt(file.read_bytes())))
    parses_or_refuses(lambda: read_tensors(file))


def test_the_good_folder_is_read(folder: Path) -> None:
    assert parses_or_refuses(lambda: read_everything(folder))
