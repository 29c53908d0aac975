import argparse
import os
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
from overt.checkpoint.weights import (
    computed_tensors,
    load_initial,
    load_tensors,
    load_weights,
    shortest_prefixes,
)
from overt.errors import CheckpointError, ConfigError
from overt.files import weight_files
from overt.files.weight_files import clean_key
from tests.checkpoint.foreign import Runs, Tracker


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
    report = load_weights(path, target, strict=True)
    assert_same(source, target)
    assert len(report.mapped) == len(source.state_dict())
    assert (report.missing, report.unexpected, report.skipped) == ([], [], [])


def test_safetensors_and_own_folders_load(tmp_path, source, target):
    save_file(dict(source.state_dict()), tmp_path / "weights.safetensors")
    load_weights(tmp_path / "weights.safetensors", target, strict=True)
    assert_same(source, target)

    average, again = Tracker(), Tracker()
    manager = CheckpointManager(tmp_path / "run")
    folder = manager.save_checkpoint(0, source, ema=average)
    load_weights(folder, again, strict=True)
    assert_same(source, again)
    load_weights(tmp_path / "run" / "latest", again, strict=True, part="ema")
    assert_same(average, again)
    with pytest.raises(CheckpointError, match="name one, such as"):
        load_weights(tmp_path / "run", again)


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
        load_weights(tmp_path / "bare.pt", target, strict=True)
        assert_same(source, target)


def test_two_keys_that_become_one_are_refused(tmp_path, source, target):
    state = source.state_dict()
    torch.save({**state, "module.head.weight": state["head.weight"]}, tmp_path / "two.pt")
    with pytest.raises(CheckpointError, match=r"head.weight and module.head.weight both become"):
        load_weights(tmp_path / "two.pt", target)


def test_embeddings_of_other_sizes_keep_the_models_own(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "a.pt")
    target = Tracker(frames=16)
    own = target.time_emb.clone()
    report = load_weights(tmp_path / "a.pt", target, strict=True)
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
        load_weights(tmp_path / "a.pt", target)
    assert "head.weight: (2, 4) in the file, (2, 5) in the model" in str(caught.value)
    assert "time_emb" not in str(caught.value)
    # Something to do from the command line comes first.
    assert "Set the sizes in the configuration to those of the checkpoint" in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())
    report = load_weights(tmp_path / "a.pt", target, allow_shape_mismatch=True)
    assert "head.weight" in report.skipped
    assert ("head.bias", "head.bias") in report.mapped


@pytest.mark.parametrize(
    "stored",
    [
        lambda weight: weight.mul(64).to(torch.int8),  # the factor lies in another tensor
        lambda weight: weight.bool(),
        lambda weight: weight.to(torch.complex64),
        lambda weight: weight.to_sparse(),
    ],
)
def test_other_kinds_of_numbers_are_refused(tmp_path, source, target, stored):
    state = source.state_dict() | {"head.weight": stored(source.head.weight.detach())}
    torch.save(state, tmp_path / "a.pt")
    for load in (load_weights, load_initial):
        with pytest.raises(CheckpointError, match=r"head\.weight: .* torch.float32 in the model"):
            load(tmp_path / "a.pt", target)
    load_initial(tmp_path / "a.pt", target, skip=["head.weight"])


def test_other_types_of_the_same_kind_are_converted(tmp_path, source, target):
    state = {
        key: value.double() if value.is_floating_point() else value.to(torch.uint8)
        for key, value in source.state_dict().items()
    }
    torch.save(state, tmp_path / "a.pt")
    load_weights(tmp_path / "a.pt", target)
    assert_same(source, target)


def test_missing_and_unexpected_are_reported_and_refused_when_strict(tmp_path, source, target):
    state = dict(source.state_dict())
    state["extra.weight"] = state.pop("head.bias")
    torch.save({"model": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "a")
    report = load_weights(tmp_path / "a", target)
    assert report.missing == ["head.bias"]
    assert report.unexpected == ["module.extra.weight"]
    assert report.renamed == len(report.mapped) == len(state) - 1
    with pytest.raises(CheckpointError, match="missing: 1"):
        load_weights(tmp_path / "a", target, strict=True)


def test_a_checkpoint_of_another_model_shows_both_sides(tmp_path, target):
    torch.save(nn.Conv2d(1, 1, 1).state_dict(), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="another model") as caught:
        load_weights(tmp_path / "a.pt", target)
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
    assert load_weights(tmp_path / "a", target, strict=True).missing == []
    assert torch.equal(target.out.weight, source.embedding.weight)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path, target, zipped):
    content = {"model": target.state_dict(), "hook": Runs(str(tmp_path / "proof"))}
    torch.save(content, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"posix.mkdir.*Nothing of it was run"):
        load_weights(tmp_path / "evil.pt", target)
    assert not (tmp_path / "proof").exists()


def test_a_broken_own_checkpoint_is_refused(tmp_path, source):
    folder = CheckpointManager(tmp_path).save_checkpoint(0, source)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(CheckpointError, match=r"broken.*contents have changed"):
        load_weights(folder, source)


# --- what a model declares -------------------------------------------------------------------


class Declaring(nn.Module):
    computed_tensors = ("table",)

    def __init__(self, rows=3):
        super().__init__()
        self.register_buffer("table", torch.arange(float(rows)))
        self.inner = nn.Linear(2, 2)


@pytest.mark.parametrize("wrap", [nn.Sequential, Parallel, torch.compile])
def test_computed_tensors_are_found_below_any_wrapper(wrap):
    model = wrap(Declaring())
    prefix = "0." if wrap is nn.Sequential else ""
    assert computed_tensors(model) == {f"{prefix}table"}
    report = load_tensors(
        {f"{prefix}{key}": value for key, value in Declaring(5).state_dict().items()},
        model,
        source="a file",
    )
    assert [clean_key(key) for key in report.skipped] == [f"{prefix}table"]


def test_a_declaration_of_what_is_not_there_is_refused():
    model = Declaring()
    model.__class__ = type("Wrong", (Declaring,), {"computed_tensors": ("tabel",)})
    with pytest.raises(
        CheckpointError, match=r"Wrong.computed_tensors names 'tabel'.*it has table"
    ):
        computed_tensors(model)


# --- checkpoint.init_from --------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_a_new_run_starts_from_a_file_that_fills_the_model(file, source, target):
    report = load_initial(file, target)
    assert_same(source, target)
    assert (report.missing, report.skipped) == ([], [])


def test_trained_tensors_of_another_size_are_refused_with_keys_shapes_and_remedy(file):
    target = Tracker(frames=16, width=5)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_initial(file, target)
    message = str(caught.value)
    assert "a.pt does not fill 5 tensor(s) of the model" in message
    assert "head.weight: (2, 4) in the file, (2, 5) in the model" in message
    assert "time_emb" not in message  # computed
    # All of the encoder, but only the weight of the head.
    assert message.endswith("'checkpoint.init_skip=[encoder,head.weight]'")
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


def test_what_init_skip_names_keeps_its_fresh_values_and_is_reported(file, source):
    target = Tracker(width=5)
    fresh = target.encoder[0].weight.clone()
    report = load_initial(file, target, ["encoder.", "head.weight"])
    assert torch.equal(target.encoder[0].weight, fresh)
    assert torch.equal(target.head.bias, source.head.bias)
    assert report.skipped == [
        "encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias",
        "head.weight", "time_emb",
    ]  # fmt: skip
    # Also what would fit: the head of a pretrained model, say.
    target = Tracker()
    fresh = target.head.weight.clone()
    load_initial(file, target, ["head"])
    assert torch.equal(target.head.weight, fresh)


def test_trained_tensors_that_the_file_lacks_are_refused_unless_optional(tmp_path, source, target):
    state = {key: value for key, value in source.state_dict().items() if "head" not in key}
    del state["count"]  # a buffer: nothing is trained there
    torch.save(state, tmp_path / "encoder.pt")
    with pytest.raises(CheckpointError) as caught:
        load_initial(tmp_path / "encoder.pt", target)
    assert "head.weight: not in the file\n  head.bias: not in the file" in str(caught.value)
    assert str(caught.value).endswith("'checkpoint.init_skip=[head]'")
    assert load_initial(tmp_path / "encoder.pt", target, optional=["head."]).missing == [
        "count", "head.weight", "head.bias"
    ]  # fmt: skip
    report = load_initial(tmp_path / "encoder.pt", target, ["head"])
    assert report.missing == ["count"]
    assert "skipped: 2 (head.weight, head.bias)" in str(report)
    target.head.requires_grad_(False)  # of a file of its own, say
    load_initial(tmp_path / "encoder.pt", target)


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("heads", "did you mean head?"),
        ("head.wieght", "did you mean head.weight?"),
        ("encoder.2", "did you mean encoder."),
        ("enc", "did you mean encoder?"),
        ("", "the model has time_emb, count, encoder, head"),
    ],
)
def test_an_entry_of_init_skip_that_matches_nothing_is_refused(file, target, entry, hint):
    with pytest.raises(
        ConfigError, match=r"checkpoint.init_skip: .* is neither a tensor"
    ) as caught:
        load_initial(file, target, [entry])
    assert repr(entry) in str(caught.value)
    assert hint in str(caught.value)


def test_init_skip_of_everything_is_refused(file, target):
    with pytest.raises(ConfigError, match="every tensor of the model"):
        load_initial(file, target, ["encoder", "head", "time_emb", "count"])


def test_a_file_of_another_model_is_refused_as_such(tmp_path, target):
    torch.save(nn.Conv2d(1, 1, 1).state_dict(), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="another model"):
        load_initial(tmp_path / "a.pt", target, ["head"])


def test_prefixes_cover_the_keys_and_no_others():
    keys = ["a.b.x", "a.b.y", "a.c", "d.e.x"]
    assert shortest_prefixes(["a.b.x", "a.b.y"], keys) == ["a.b"]
    assert shortest_prefixes(["a.b.x", "a.b.y", "a.c"], keys) == ["a"]
    assert shortest_prefixes(["a.b.x", "d.e.x"], keys) == ["a.b.x", "d"]
    assert shortest_prefixes(["a"], ["a", "a.b"]) == ["a"]


def test_names_in_the_file_are_mapped_by_rule(tmp_path: Path) -> None:
    torch.save({"net.fc.weight": torch.ones(2, 3), "extra": torch.ones(1)}, tmp_path / "file.pt")
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    report = load_initial(tmp_path / "file.pt", model, rename=[(r"^net\.fc", "0"), ("extra", None)])
    assert report.unexpected == []
    assert torch.equal(model[0].weight, torch.ones(2, 3))
    load_weights(tmp_path / "file.pt", model, rename=[(r"^net\.fc", "0")])
    with pytest.raises(CheckpointError, match=r"init_map\.0\.match=typo fits no tensor"):
        load_initial(tmp_path / "file.pt", model, rename=[("typo", "0")])
