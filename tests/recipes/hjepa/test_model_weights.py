"""Weights of other files, runs and sizes in an H-JEPA: what is taken, and what the log says."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import HJEPA_SPLIT, SMALL_HJEPA
from torch import Tensor

from overt.checkpoint.trained import load_model
from overt.checkpoint.weights import load_weights
from overt.cli import main
from overt.errors import CheckpointError
from overt.nn.vit import VisionTransformer
from overt.recipes.hjepa.model import HJEPA
from overt.recipes.hjepa.predictor import Predictor

LEARNED = ["model.positions=learned", "training.num_steps=1"]
WIDE = [*LEARNED, "data.image_size=[8,32]"]  # 2 x 8 patches, as many as 4 x 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


def train(root: Path, name: str, *overrides: str) -> Path:
    SMALL_HJEPA.trainer(root, *HJEPA_SPLIT, *overrides, f"exp_name={name}").train()
    return root / "runs" / name / "checkpoints" / "latest"


@pytest.fixture(scope="module")
def learned(root: Path) -> Path:
    return train(root, "learned", *LEARNED)


@pytest.fixture(scope="module")
def wide(root: Path) -> Path:
    return train(root, "wide", *WIDE)


def build(root: Path, *overrides: str) -> HJEPA:
    torch.manual_seed(1)
    return SMALL_HJEPA.recipe(root, *overrides).build_model()


def tables(model: HJEPA) -> list[Tensor]:
    assert model.target_encoder is not None
    encoders = (model.context_encoder, model.target_encoder)
    return [encoder.vit.pos_embed.detach() for encoder in encoders]


def official(path: Path, predictor: Predictor, **changed: Any) -> dict[str, Any]:
    """A file as I-JEPA's training writes it."""
    torch.manual_seed(2)
    options = {"class_token": False, "positions": "sincos"} | changed
    parts: dict[str, torch.nn.Module] = {
        name: VisionTransformer((16, 16), 4, 32, 2, 2, **options)
        for name in ("encoder", "target_encoder")
    }
    parts["predictor"] = predictor
    content: dict[str, Any] = {
        name: {f"module.{key}": value for key, value in part.state_dict().items()}
        for name, part in parts.items()
    }
    optimizer = torch.optim.AdamW(predictor.parameters()).state_dict()
    torch.save(content | {"opt": optimizer, "scaler": None, "epoch": 3, "loss": 0.5}, path)
    return content


@pytest.mark.parametrize("class_token", [True, False])
def test_an_official_ijepa_file_fills_each_encoder_and_the_predictor(
    class_token: bool, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(root, f"model.class_token={class_token}", "model.positions=learned")
    file = tmp_path / "ijepa.pth"
    content = official(file, Predictor((4, 4), 32, 16, 1, 2))
    report = load_weights(file, model)
    assert model.target_encoder is not None
    for part, ours in {
        "encoder": model.context_encoder.vit,
        "target_encoder": model.target_encoder.vit,
        "predictor": model.predictor,
    }.items():
        for name, value in ours.state_dict().items():
            if name == "pos_embed":
                value = value[:, int(class_token) :]
            if name != "cls_token":
                assert torch.equal(value, content[part][f"module.{name}"]), f"{part} {name}"
    assert not report.unexpected
    assert any("cls_token" in key for key in report.missing) == class_token
    assert ("the model keeps its own" in caplog.text) == class_token


def test_a_predictor_of_other_sizes_is_left_out_and_listed(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(root)
    official(tmp_path / "ijepa.pth", Predictor((4, 4), 32, 24, 3, 2))
    report = load_weights(tmp_path / "ijepa.pth", model)
    assert "the predictor of the file is skipped" in caplog.text
    assert "predictor.predictor_embed.weight" in report.missing
    assert not any("encoder" in key for key in report.missing)
    # A deeper one of the same sizes: what fits by name is taken, the rest is listed.
    official(tmp_path / "deep.pth", Predictor((4, 4), 32, 16, 2, 2))
    report = load_weights(tmp_path / "deep.pth", model)
    assert not any("predictor" in key for key in report.missing)
    assert all(key.startswith("predictor.predictor_blocks.1.") for key in report.unexpected)
    assert report.unexpected


def test_training_starts_from_an_official_ijepa_file(root: Path, tmp_path: Path) -> None:
    content = official(tmp_path / "ijepa.pth", Predictor((4, 4), 32, 16, 1, 2))
    start = f"checkpoint.init_from={tmp_path / 'ijepa.pth'}"
    trainer = SMALL_HJEPA.trainer(root, *HJEPA_SPLIT, "exp_name=official", start)
    trainer.close()
    weight = trainer.model.context_encoder.vit.norm.weight
    assert torch.equal(weight, content["encoder"]["module.norm.weight"])


@pytest.mark.parametrize("prefix", ["", "encoder."])
def test_an_encoder_of_another_width_is_refused_with_file_and_widths(
    prefix: str, root: Path, tmp_path: Path
) -> None:
    other = VisionTransformer((16, 16), 4, 64, 2, 2).state_dict()
    torch.save({prefix + key: value for key, value in other.items()}, tmp_path / "timm.pth")
    with pytest.raises(CheckpointError, match=r"timm\.pth: .* 64 features wide.*model's is 32"):
        load_weights(tmp_path / "timm.pth", build(root))


def test_a_predictor_with_other_heads_is_refused(root: Path) -> None:
    model = build(root)
    with pytest.raises(CheckpointError, match=r"predictor .* with 4 attention heads.* has 2"):
        model.adapt_tensors(model.state_dict(), {"model": {"predictor": {"num_heads": 4}}})


def test_a_run_without_a_target_encoder_fills_both(root: Path) -> None:
    end_to_end = ["model.use_target_encoder=false", "loss.detach_targets=false"]
    source = train(root, "end_to_end", *end_to_end, "training.num_steps=1")
    model = build(root)
    report = load_weights(source, model)
    assert not report.missing
    assert model.target_encoder is not None
    target = model.target_encoder.state_dict()
    for name, value in model.context_encoder.state_dict().items():
        assert torch.equal(value, target[name]), name
    # The other way round the file's target is not needed, and listed.
    again = build(root, *end_to_end)
    report = load_weights(train(root, "both", "training.num_steps=1"), again)
    assert report.unexpected
    assert all(key.startswith("target_encoder.vit.") for key in report.unexpected)


def test_an_encoder_alone_can_be_evaluated_and_a_part_of_one_cannot(
    root: Path, tmp_path: Path
) -> None:
    recipe = SMALL_HJEPA.recipe(root)
    tensors = recipe.build_model().context_encoder.vit.state_dict()
    torch.save(tensors, tmp_path / "timm.pth")
    _, report = load_model(recipe, tmp_path / "timm.pth")
    assert all(key.startswith(("predictor.", "monitor.")) for key in report.missing)
    assert "predictor.predictor_embed.weight" in report.missing
    del tensors["blocks.0.attn.qkv.weight"]
    torch.save(tensors, tmp_path / "part.pth")
    with pytest.raises(CheckpointError, match=r"part\.pth: 1 of \d+ trained tensors are not in"):
        load_model(recipe, tmp_path / "part.pth")


def test_tables_of_a_run_are_resized_from_its_own_grid(
    wide: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same = SMALL_HJEPA.recipe(root, *WIDE).build_model()
    load_weights(wide, same, strict=True)
    assert not caplog.text
    square = build(root, *LEARNED)
    load_weights(wide, square, strict=True)
    assert "position table resized from (2, 8) to (4, 4) patches" in caplog.text
    for table, before in zip(tables(square), tables(same), strict=True):
        assert table.shape == before.shape
        assert not torch.equal(table, before)


def test_fixed_tables_are_those_of_the_model_not_of_the_file(wide: Path, root: Path) -> None:
    model = build(root)
    own, predictor = tables(model)[0].clone(), model.predictor.state_dict()
    load_weights(wide, model, strict=True)
    assert all(torch.equal(table, own) for table in tables(model))
    after = model.predictor.state_dict()["predictor_pos_embed"]
    assert torch.equal(after, predictor["predictor_pos_embed"])
    larger = build(root, "data.image_size=[32,32]")
    assert not load_weights(wide, larger, strict=True).skipped


def test_an_evaluation_at_another_size_resizes_and_does_not_depend_on_the_seed(
    learned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for settings in (
        ["data.image_size=[32,32]"],
        ["model.patch_size=8", "data.image_size=[32,32]"],
    ):
        scores = []
        for seed in (1, 2):
            output = tmp_path / f"{len(settings)}_{seed}"
            words = [f"checkpoint={learned}", f"output={output}", f"seed={seed}", *settings]
            with caplog.at_level(logging.WARNING, logger="overt"):
                assert main(["evaluate", *words, "training.device=cpu"]) == 0
            scores.append(json.loads((output / "scores.json").read_text())["scores"])
        assert scores[0] == scores[1]
        said = "patch weights resized" if len(settings) == 2 else "position table resized"
        assert said in caplog.text
        caplog.clear()


def test_an_evaluation_with_its_own_settings_finds_every_tensor(learned: Path, root: Path) -> None:
    _, report = load_model(SMALL_HJEPA.recipe(root, *LEARNED), learned)
    assert (report.missing, report.unexpected, report.skipped) == ([], [], [])
