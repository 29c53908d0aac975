"""The seed's calls train with the engine."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from small_recipes import RUN, SMALL_HJEPA
from torch import Tensor, nn
from torch.utils.data import DataLoader

from overt.compat.hjepa import (
    HJEPATrainer,
    create_hjepa_model,
    create_loss_function,
    create_masking_function,
    create_optimizer,
    create_train_loader,
    create_val_loader,
    load_config,
)
from overt.errors import ConfigError, DataError


class Noise:
    """Twelve images of two classes, numbers from 0 to 1."""

    classes, targets = ("a", "b"), [index % 2 for index in range(12)]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 16, 16, generator=generator), index % 2


class Cosine(nn.Module):
    """A loss of one's own, called as the seed's are."""

    def forward(self, predictions: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, dict]:
        similarity = nn.functional.cosine_similarity(predictions[0], targets[0].detach(), dim=-1)
        return 1 - similarity.mean(), {"similarity": similarity.mean()}


def small(folder: Path, **changes: object) -> list[str]:
    sizes = [word for word in SMALL_HJEPA.words if "synthetic" not in word]
    tiny = ["model.encoder_type=custom", "model.patch_size=4", "model.class_token=false"]
    words = ["training.precision=fp32", "training.num_epochs=null", "training.num_steps=2"]
    words += ["schedule.warmup_epochs=0", "model.ema.momentum_warmup_epochs=0"]
    return [*RUN, *sizes, *tiny, *words, "evaluation.num_workers=0", f"output_dir={folder}"]


def test_the_seeds_example_runs_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    old = {"training": {"lr": 2e-3}, "data": {"data_path": "unused"}, "seed": 3}
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(old)))
    config = load_config(path, *small(tmp_path))
    model = create_hjepa_model(config)
    optimizer = create_optimizer(model, config)
    loader = DataLoader(Noise(), batch_size=4)
    trainer = HJEPATrainer(
        model=model, train_loader=loader, val_loader=loader, optimizer=optimizer,
        loss_fn=Cosine(), config=config, device="cpu", legacy_names=True,
    )  # fmt: skip
    before = model.state_dict()["target_encoder.vit.norm.weight"].clone()
    scores = trainer.train()
    assert {"knn_top1", "val_loss"} <= scores.keys()
    assert trainer.config.optimizer.lr == pytest.approx(2e-3)
    assert trainer.config.training.batch_size == 4
    saved = torch.load(trainer.config.run_dir / "checkpoints" / "checkpoint_latest.pth")
    assert saved["model_state_dict"]["target_encoder.vit.norm.weight"].shape == before.shape
    rows = (trainer.config.run_dir / "metrics.jsonl").read_text()
    assert "similarity" in rows


def test_parts_from_the_configuration_are_those_of_omitted_ones(tmp_path: Path) -> None:
    config = load_config_of_nothing(tmp_path)
    created = HJEPATrainer(
        None,
        create_train_loader(config),
        create_val_loader(config),
        None,
        create_loss_function(config),
        create_masking_function(config),
        config,
        "cpu",
    )
    omitted = HJEPATrainer(config=config, device="cpu")
    assert created.config == omitted.config
    assert created.recipe.loss_fn is None
    assert "sets" not in created.recipe.__dict__  # opened where data.root is


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs config="):
        HJEPATrainer()
    config = load_config_of_nothing(tmp_path)
    with pytest.raises(ConfigError, match="masks are drawn by the loader"):
        HJEPATrainer(masking_fn=print, config=config)  # type: ignore[arg-type]
    other = load_config(tmp_path / "empty.yaml", *small(tmp_path), "data.masking.num_masks=2")
    with pytest.raises(ConfigError, match="masking_fn was created from another configuration"):
        HJEPATrainer(masking_fn=create_masking_function(other), config=config)
    with pytest.raises(ConfigError, match="not a readable YAML"):
        load_config(tmp_path / "none.yaml")

    class Normalized(Noise):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return super().__getitem__(index)[0] * 4 - 2, 0

    trainer = HJEPATrainer(train_loader=DataLoader(Normalized()), config=config)
    with pytest.raises(DataError, match="normalizes them itself"):
        trainer.recipe.build_dataset().sample(0, torch.Generator())  # type: ignore[arg-type]


def load_config_of_nothing(folder: Path):
    (folder / "empty.yaml").write_text("data: {data_path: unused}\n")
    return load_config(folder / "empty.yaml", *small(folder))
