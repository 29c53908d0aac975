"""What overt's own models declare: which tensors a file of other sizes may leave alone."""

from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_HJEPA, small_lbm, small_tracker
from torch import nn
from toy_runs import toy_config, train_toy

import overt
from overt.checkpoint.weights import computed_tensors, load_initial
from overt.errors import CheckpointError, ConfigError
from overt.nn.vit import VisionTransformer
from overt.recipes.cotracker3.model import CoTracker3Offline
from overt.recipes.hjepa.predictor import ReferencePredictor


def save(model: nn.Module, path: Path) -> Path:
    torch.save(
        {"model": {f"module.{key}": value for key, value in model.state_dict().items()}}, path
    )
    return path


def test_a_cotracker3_file_of_another_window_keeps_the_models_own_table(tmp_path: Path) -> None:
    file = save(small_tracker(CoTracker3Offline, window_len=9), tmp_path / "official.pth")
    for load in (overt.load_checkpoint, load_initial):
        model = small_tracker(CoTracker3Offline, window_len=6)
        own = model.time_emb.clone()
        with torch.no_grad():
            model.fnet.conv1.weight.zero_()
        report = load(file, model)
        assert report.skipped == ["time_emb"]
        assert "skipped: 1 (time_emb)" in str(report)
        assert torch.equal(model.time_emb, own)
        assert model.fnet.conv1.weight.abs().sum() > 0


def test_an_lbm_of_another_memory_is_refused_unless_its_tables_are_named(tmp_path: Path) -> None:
    file = save(small_lbm(memory_size=4), tmp_path / "lbm.pt")
    model = small_lbm(memory_size=6)
    with pytest.raises(CheckpointError) as caught:
        load_initial(file, model)
    tables = [
        f"transformer.layers.{layer}.{name}_time_emb"
        for layer in range(len(model.transformer.layers))
        for name in ("collision", "stream")
    ]
    for key in tables:
        assert f"{key}: (1, 5, 16) in the file, (1, 7, 16) in the model" in str(caught.value)
    assert f"checkpoint.init_skip=[{','.join(tables)}]" in str(caught.value)
    report = load_initial(file, model, tables)
    assert report.skipped == tables
    with pytest.raises(CheckpointError, match="another shape than in the model"):
        overt.load_checkpoint(file, model)


def test_an_lbm_of_another_input_size_is_refused_for_its_trained_positions(tmp_path: Path) -> None:
    file = save(small_lbm(), tmp_path / "lbm.pt")
    with pytest.raises(CheckpointError, match="frame_pos_embedding"):
        load_initial(file, small_lbm(input_size=(48, 32)))


def test_tables_are_computed_where_they_are_fixed_and_trained_where_they_are_learned() -> None:
    assert computed_tensors(VisionTransformer((8, 8), 4, 16, 1, 2, positions="sincos")) == {
        "pos_embed"
    }
    assert computed_tensors(VisionTransformer((8, 8), 4, 16, 1, 2, positions="learned")) == set()
    assert computed_tensors(ReferencePredictor(16, 1, 2)) == {"pos_embed_predictor"}


def test_an_encoder_alone_starts_an_hjepa_whose_predictor_may_be_fresh(tmp_path: Path) -> None:
    recipe = SMALL_HJEPA.recipe(tmp_path)
    encoder = recipe.build_model().context_encoder.vit
    torch.save(encoder.state_dict(), tmp_path / "timm.pth")
    model = recipe.build_model()
    report = load_initial(tmp_path / "timm.pth", model, optional=recipe.unscored)
    assert "predictor.mask_token" in report.missing
    assert torch.equal(model.context_encoder.vit.norm.weight, encoder.norm.weight)
    with pytest.raises(CheckpointError, match=r"checkpoint.init_skip=\[predictor"):
        load_initial(tmp_path / "timm.pth", model)


def test_a_run_takes_its_setting(tmp_path: Path) -> None:
    train_toy(tmp_path / "first", "training.num_steps=1")
    start = f"checkpoint.init_from={tmp_path / 'first/toy/checkpoints/latest'}"
    settings = [start, "training.num_steps=1", "model.width=6"]
    with pytest.raises(CheckpointError) as caught:
        train_toy(tmp_path / "second", *settings)
    remedy = "checkpoint.init_skip=[first,last.weight,target]"
    assert str(caught.value).endswith(f"'{remedy}'")
    train_toy(tmp_path / "second", *settings, remedy)
    with pytest.raises(ConfigError, match=r"init_skip: 'frist' .*did you mean first\?"):
        train_toy(tmp_path / "third", *settings, "checkpoint.init_skip=[frist]")
    with pytest.raises(ConfigError, match=r"init_skip=\['first'\] has no effect"):
        toy_config(tmp_path, "checkpoint.init_skip=[first]")
