"""Reading files of any origin: what is refused, and that nothing in them runs."""

import argparse
import os
import pickle

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import format_utils

from overt.checkpoint.reading import read_tensors
from overt.errors import CheckpointError
from tests.checkpoint.foreign import Runs, Tracker


def test_plain_pickles_and_whole_modules_are_refused(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Runs(str(tmp_path / "proof")), protocol=2))
    torch.save(Tracker(), tmp_path / "module.pt")
    with pytest.raises(CheckpointError, match="Nothing of it was run"):
        read_tensors(tmp_path / "a.pkl")
    with pytest.raises(CheckpointError, match="Tracker"):
        read_tensors(tmp_path / "module.pt")
    assert not (tmp_path / "proof").exists()


def test_only_harmless_classes_are_allowed_and_only_while_reading(tmp_path):
    before = set(torch.serialization.get_safe_globals())  # torch gives them in any order
    torch.save({"a": torch.ones(1), "n": argparse.Namespace(x=np.int64(3))}, tmp_path / "a.pt")
    _, rest = read_tensors(tmp_path / "a.pt")
    assert rest["n"].x == 3
    assert set(torch.serialization.get_safe_globals()) == before
    torch.save({"a": torch.ones(1), "n": np.array([{}], dtype=object)}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="ObjectDType"):
        read_tensors(tmp_path / "b.pt")


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["zip", "old", "safetensors"])
def test_truncated_files_are_refused(tmp_path, kind, fraction):
    path = tmp_path / "a"
    if kind == "safetensors":
        save_file(dict(Tracker().state_dict()), path)
    else:
        torch.save(Tracker().state_dict(), path, _use_new_zipfile_serialization=kind == "zip")
    os.truncate(path, int(path.stat().st_size * fraction))
    with pytest.raises(CheckpointError, match="opy it again"):
        read_tensors(path)


def test_the_folder_of_a_run_is_refused_with_its_checkpoint(tmp_path):
    last = tmp_path / "run" / "checkpoints" / "latest"
    last.mkdir(parents=True)
    (last / "manifest.json").touch()
    with pytest.raises(CheckpointError, match=r"did you mean .*/run/checkpoints/latest\?"):
        read_tensors(tmp_path / "run")


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello " * 50)
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("text", "neither a safetensors file"),
        ("list.pt", "holds a list"),
        ("empty.pt", r"no tensors .* it has epoch"),
        ("folder", "no manifest.json"),
        ("absent", "no checkpoint at"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_tensors(tmp_path / name)
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="EMA"):
        read_tensors(tmp_path / "a.pt", "ema")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_of_torchs_own_sharded_checkpoints_says_how_to_convert_it(tmp_path):
    folder, converted = tmp_path / "a b", tmp_path / "weights.pth"
    weight = torch.ones(2, 3)
    dcp.save({"model": {"weight": weight}}, checkpoint_id=folder, no_dist=True)
    with pytest.raises(CheckpointError) as refused:
        read_tensors(folder)
    command = f"{format_utils.__name__} dcp_to_torch '{folder}' weights.pth"
    assert f"saved it. If you trust it, convert it with `python -m {command}`" in str(refused.value)
    format_utils.dcp_to_torch_save(folder, converted)  # what that runs
    assert torch.equal(read_tensors(converted)[0]["weight"], weight)
