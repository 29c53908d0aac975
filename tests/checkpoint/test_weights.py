import argparse
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.weights import load_checkpoint, load_tensors, read_tensors
from overt.errors import CheckpointError
from overt.files import weight_files
from overt.files.weight_files import clean_key


class Tracker(nn.Module):
    def __init__(self, frames=8, width=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 2)
        self.register_buffer("time_emb", torch.randn(1, frames, width))
        self.register_buffer("count", torch.tensor(0))


class Wrapped(nn.Module):
    """As the point diffusion scripts keep it: everything under `model.`."""

    def __init__(self):
        super().__init__()
        self.model = Tracker()


class Parallel(nn.Module):
    """Names its inner module as DistributedDataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.fixture
def source():
    torch.manual_seed(1)
    model = Tracker()
    model.count.fill_(7)
    return model


@pytest.fixture
def target():
    torch.manual_seed(2)
    return Tracker()


def assert_same(first: nn.Module, second: nn.Module) -> None:
    ours = {clean_key(key): value for key, value in second.state_dict().items()}
    for key, value in first.state_dict().items():
        assert torch.equal(value, ours[clean_key(key)]), key


def with_optimizer(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.encoder(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


LAYOUTS = {
    "plain": lambda model: model.state_dict(),
    "cotracker": lambda model: {
        "model": model.state_dict(),
        "optimizer": with_optimizer(model),
        "scheduler": {"last_epoch": 3},
        "total_steps": 3,
    },
    "state_dict": lambda model: {"state_dict": model.state_dict(), "epoch": 2},
    "pcdiff": lambda model: {
        "epoch": 4,
        "model_state": {f"model.module.{k}": v for k, v in model.state_dict().items()},
        "optimizer_state": with_optimizer(model),
        "loss": 0.5,
    },
    "hjepa": lambda model: {
        "epoch": 5,
        "model_state_dict": model.state_dict(),
        "metrics": {"val_loss": np.float64(0.25), "accuracy": np.float32(0.5)},
        "best_metric": np.float64(0.25),
        "scheduler_state_dict": None,
    },
    "lbm": lambda model: {
        "model": OrderedDict((f"module.{k}", v) for k, v in model.state_dict().items()),
        "scaler": {"scale": 65536.0},
        "epoch": 6,
        "args": argparse.Namespace(lr=5e-4, root=Path("/data"), sizes=[1, 2]),
    },
    "nested": lambda model: {"model": {"state_dict": model.state_dict()}},
    "compiled": lambda model: torch.compile(model).state_dict(),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_torch_files_loads(tmp_path, source, target, layout, zipped):
    path = tmp_path / "weights.pth"
    torch.save(LAYOUTS[layout](source), path, _use_new_zipfile_serialization=zipped)
    report = load_checkpoint(path, target, strict=True)
    assert_same(source, target)
    assert len(report.mapped) == len(source.state_dict())
    assert (report.missing, report.unexpected, report.skipped) == ([], [], [])


def test_safetensors_and_own_folders_load(tmp_path, source, target):
    save_file(dict(source.state_dict()), tmp_path / "weights.safetensors")
    load_checkpoint(tmp_path / "weights.safetensors", target, strict=True)
    assert_same(source, target)

    average, again = Tracker(), Tracker()
    manager = CheckpointManager(tmp_path / "run")
    folder = manager.save_checkpoint(0, source, ema=average)
    load_checkpoint(folder, again, strict=True)
    assert_same(source, again)
    load_checkpoint(tmp_path / "run" / "latest", again, strict=True, part="ema")
    assert_same(average, again)
    with pytest.raises(CheckpointError, match="name one, such as"):
        load_checkpoint(tmp_path / "run", again)


WRAPPER_LISTS = st.lists(st.sampled_from(sorted(weight_files.WRAPPERS)), max_size=4)


@settings(deadline=None)
@given(WRAPPER_LISTS, WRAPPER_LISTS, WRAPPER_LISTS, st.booleans(), st.booleans())
def test_any_nesting_of_wrappers_is_taken_off(outer, middle, inner, leading_there, leading_here):
    """`model.module._orig_mod.encoder.module.0.weight`, into a model with or without `model.`"""
    torch.manual_seed(1)
    source, target = Tracker(), Wrapped() if leading_here else Tracker()

    def wrap(key):
        *path, name = key.split(".")
        lead = ["model"] if leading_there else []
        return ".".join([*outer, *lead, *middle, *path, *inner, name])

    tensors = {wrap(key): value for key, value in source.state_dict().items()}
    report = load_tensors(tensors, target, strict=True, source="a file")
    assert len(report.mapped) == len(tensors)
    assert_same(source, target.model if leading_here else target)


def test_wrapped_models_load_bare_checkpoints(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "bare.pt")
    for target in (torch.compile(Tracker()), Parallel(Tracker())):
        load_checkpoint(tmp_path / "bare.pt", target, strict=True)
        assert_same(source, target)


def test_two_keys_that_become_one_are_refused(tmp_path, source, target):
    state = source.state_dict()
    torch.save({**state, "module.head.weight": state["head.weight"]}, tmp_path / "two.pt")
    with pytest.raises(CheckpointError, match=r"head.weight and module.head.weight both become"):
        load_checkpoint(tmp_path / "two.pt", target)


def test_embeddings_of_other_sizes_keep_the_models_own(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "a.pt")
    target = Tracker(frames=16)
    own = target.time_emb.clone()
    report = load_checkpoint(tmp_path / "a.pt", target, strict=True)
    assert report.skipped == ["time_emb"]
    assert report.missing == []
    assert torch.equal(target.time_emb, own)
    assert torch.equal(target.head.weight, source.head.weight)
    assert "skipped: 1 (time_emb)" in str(report)


def test_other_shapes_are_refused_with_both_and_nothing_is_loaded(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "a.pt")
    target = Tracker(width=5)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "a.pt", target)
    assert "head.weight: (2, 4) in the file, (2, 5) in the model" in str(caught.value)
    assert "time_emb" not in str(caught.value)
    # Something to do from the command line comes first.
    assert "Set the sizes in the configuration to those of the checkpoint" in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())
    report = load_checkpoint(tmp_path / "a.pt", target, allow_shape_mismatch=True)
    assert "head.weight" in report.skipped
    assert ("head.bias", "head.bias") in report.mapped


def test_missing_and_unexpected_are_reported_and_refused_when_strict(tmp_path, source, target):
    state = dict(source.state_dict())
    state["extra.weight"] = state.pop("head.bias")
    torch.save({"model": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "a")
    report = load_checkpoint(tmp_path / "a", target)
    assert report.missing == ["head.bias"]
    assert report.unexpected == ["module.extra.weight"]
    assert report.renamed == len(report.mapped) == len(state) - 1
    with pytest.raises(CheckpointError, match="missing: 1"):
        load_checkpoint(tmp_path / "a", target, strict=True)


def test_a_checkpoint_of_another_model_shows_both_sides(tmp_path, target):
    torch.save(nn.Conv2d(1, 1, 1).state_dict(), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="another model") as caught:
        load_checkpoint(tmp_path / "a.pt", target)
    assert "The file has weight, bias; the model has time_emb, count" in str(caught.value)


def test_a_tied_name_is_not_missing(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(3, 2)
            self.out = nn.Linear(2, 3, bias=False)
            self.out.weight = self.embedding.weight

    source, target = Tied(), Tied()
    save_file({"embedding.weight": source.embedding.weight.detach()}, tmp_path / "a")
    assert load_checkpoint(tmp_path / "a", target, strict=True).missing == []
    assert torch.equal(target.out.weight, source.embedding.weight)


class Runs:
    """Would make a file if it were ever loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path, target, zipped):
    content = {"model": target.state_dict(), "hook": Runs(str(tmp_path / "proof"))}
    torch.save(content, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"posix.mkdir.*Nothing of it was run"):
        load_checkpoint(tmp_path / "evil.pt", target)
    assert not (tmp_path / "proof").exists()


def test_plain_pickles_and_whole_modules_are_refused(tmp_path, target):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Runs(str(tmp_path / "proof")), protocol=2))
    torch.save(target, tmp_path / "module.pt")
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


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["zip", "old", "safetensors"])
def test_truncated_files_are_refused(tmp_path, source, kind, share):
    path = tmp_path / "a"
    if kind == "safetensors":
        save_file(dict(source.state_dict()), path)
    else:
        torch.save(source.state_dict(), path, _use_new_zipfile_serialization=kind == "zip")
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(CheckpointError, match="opy it again"):
        read_tensors(path)


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


def test_a_broken_own_checkpoint_is_refused(tmp_path, source):
    folder = CheckpointManager(tmp_path).save_checkpoint(0, source)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(CheckpointError, match=r"broken.*contents have changed"):
        load_checkpoint(folder, source)
