"""Folders as Hugging Face lays them out: read whole, refused in words, nothing run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from overt.checkpoint.reading import folder_parts, read_tensors
from overt.checkpoint.weights import load_initial
from overt.errors import CheckpointError
from overt.nn.pretrained import read_weights

WEIGHTS = {f"{number}.{kind}": torch.rand(3) for number in (0, 1) for kind in ("weight", "bias")}
SHARDS = {
    "model-00001-of-00002": ("0.weight", "0.bias"),
    "model-00002-of-00002": ("1.weight", "1.bias"),
}


@pytest.fixture(params=["safetensors", "bin", "sharded safetensors", "sharded bin"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of every kind, with the same weights."""
    return write(tmp_path, request.param)


def write(folder: Path, kind: str) -> Path:
    (folder / "config.json").write_text('{"model_type": "test"}')
    suffix = kind.rpartition(" ")[2]
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    save = save_file if suffix == "safetensors" else torch.save
    if not kind.startswith("sharded"):
        save(WEIGHTS, folder / f"{stem}.{suffix}")
        return folder
    places = {}
    for shard, keys in SHARDS.items():
        save({key: WEIGHTS[key] for key in keys}, folder / f"{shard}.{suffix}")
        places |= dict.fromkeys(keys, f"{shard}.{suffix}")
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_every_layout_is_read(folder: Path) -> None:
    tensors, rest = read_tensors(folder)
    assert tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(tensors[key], WEIGHTS[key]) for key in WEIGHTS)
    assert rest["config"] == {"model_type": "test"}
    assert folder_parts(folder) == ["model"]
    assert read_weights(folder, "model.x").keys() == WEIGHTS.keys()


def test_a_file_of_a_model_on_the_meta_device_is_refused(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 2, device="meta").state_dict()}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"without values for 2 tensor.s. \(weight, bias\)"):
        read_tensors(tmp_path / "a.pth")


def test_a_run_starts_from_it(folder: Path) -> None:
    model = nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3))
    report = load_initial(folder, model)
    assert len(report.mapped) == 4
    assert torch.equal(model[1].bias, WEIGHTS["1.bias"])


def test_the_index_itself_may_be_named(tmp_path: Path) -> None:
    write(tmp_path, "sharded safetensors")
    assert read_tensors(tmp_path / "model.safetensors.index.json")[0].keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", 'has no "weight_map"'),
        ('{"weight_map": {"a": "../model.safetensors"}}', "the name of a file next to"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "the name of a file next to"),
        ('{"weight_map": {"a": 3}}', "the name of a file next to"),
        ('{"weight_map": {"a": "model.safetensors.index.json"}}', "the name of a file next to"),
        ('{"weight_map": {"a": "absent.safetensors"}}', "copy all of them"),
        ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "lacks 1 tensor"),
    ],
)
def test_a_wrong_index_is_refused(index: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, "sharded safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=words):
        read_tensors(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_tensors(tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


def test_a_shard_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "sharded bin")
    torch.save({"1.weight": Bomb()}, tmp_path / "model-00002-of-00002.bin")
    with pytest.raises(CheckpointError, match="Nothing of it was run"):
        read_tensors(tmp_path)
    assert capsys.readouterr().out == ""
