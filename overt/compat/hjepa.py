"""The calls of the H-JEPA project: `load_config`, `create_...`, `HJEPATrainer`.

A thin layer: settings are translated, parts are handed to the recipe, and the engine trains. What
has no counterpart is refused by name, never ignored. docs/coming_from_hjepa.md shows both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from torch import Tensor, nn

from overt.compat.hjepa_settings import translate
from overt.config import Config, build_recipe, load
from overt.config.python import configure
from overt.data.images.decode import Shrink
from overt.data.images.files import UNLABELED
from overt.data.images.folder import ReadableImages
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.errors import ConfigError, DataError
from overt.recipe import StepOutput
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import Batch
from overt.recipes.hjepa.model import HJEPA, Output
from overt.recipes.hjepa.recipe import HJEPARecipe

# (predictions, targets), one tensor per level, to (loss, numbers) or a dict with the key loss.
CustomLoss = Callable[[list[Tensor], list[Tensor]], Any]


def load_config(path: Path | str, *overrides: str) -> Config:
    """Return the configuration of an old YAML file; keys without a counterpart are refused."""
    try:
        old = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable YAML file ({error})") from None
    if not isinstance(old, dict):
        raise ConfigError(f"{path}: not a YAML file with sections such as model and training")
    return config_of(old, *overrides)


def config_of(old: Mapping[Any, Any], *overrides: str) -> Config:
    """Return the configuration that old settings, a nested dict, stand for."""
    return load([*translate(old), *overrides])


def create_hjepa_model(config: Config) -> HJEPA:
    """Return a fresh model."""
    model = build_recipe(config).build_model()
    assert isinstance(model, HJEPA)
    return model


def create_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return the optimizer of the configuration for a model, without weight decay on vectors."""
    from overt.engine.optimizer import build_optimizer

    groups = build_recipe(config).parameter_groups(model)
    return build_optimizer(config.optimizer, model, groups)


@dataclass(frozen=True)
class Configured:
    """A part that the engine makes from these sections of the configuration."""

    sections: tuple[Any, ...]


def create_train_loader(config: Config) -> Configured:
    """Return what stands for the loader of the training images."""
    return Configured((config.settings.data, config.training))


def create_val_loader(config: Config) -> Configured:
    """Return what stands for the loader of the held-out images."""
    return Configured((config.settings.data, config.settings.evaluation))


def create_loss_function(config: Config) -> Configured:
    """Return what stands for the loss of the section `loss`."""
    return Configured((config.settings.loss,))


def create_masking_function(config: Config) -> Configured:
    """Return what stands for the masks of `data.masking`, which the loader draws."""
    return Configured((config.settings.data.masking,))


class HJEPATrainer:
    """Trains an H-JEPA with the engine; omitted arguments come from the configuration."""

    def __init__(
        self,
        model: HJEPA | None = None,
        train_loader: Any = None,
        val_loader: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: CustomLoss | Configured | None = None,
        masking_fn: Configured | None = None,
        config: Config | Mapping[str, Any] | None = None,
        device: str | torch.device | None = None,
        resume_checkpoint: Path | str | None = None,
        legacy_names: bool = False,
    ) -> None:
        """`legacy_names` also writes checkpoint_latest.pth and checkpoint_best.pth.

        It is the key `checkpoint.legacy_names` of a configuration.
        """
        if config is None:
            raise ConfigError("HJEPATrainer needs config=, what load_config returned")
        if not (masking_fn is None or isinstance(masking_fn, Configured)):
            raise ConfigError(
                f"HJEPATrainer: masking_fn={masking_fn!r} cannot be used, since masks are drawn by "
                "the loader; pass create_masking_function(config) or nothing, and set data.masking "
                "(see `overt docs coming_from_hjepa`)"
            )
        if not isinstance(config, Config):
            config = config_of(config)
        for name, part, create in (
            ("train_loader", train_loader, create_train_loader),
            ("val_loader", val_loader, create_val_loader),
            ("loss_fn", loss_fn, create_loss_function),
            ("masking_fn", masking_fn, create_masking_function),
        ):
            if isinstance(part, Configured) and part != create(config):
                raise ConfigError(
                    f"HJEPATrainer: {name} was created from another configuration than config="
                )
        train_loader, val_loader, loss_fn = (
            None if isinstance(part, Configured) else part
            for part in (train_loader, val_loader, loss_fn)
        )
        training: dict[str, Any] = {}
        if device is not None:
            training["device"] = str(device)
        if train_loader is not None:
            training["num_workers"] = train_loader.num_workers
            if train_loader.batch_size is not None:
                training["batch_size"] = train_loader.batch_size
        checkpoint: dict[str, Any] = {}
        if resume_checkpoint is not None:
            checkpoint["resume"] = str(resume_checkpoint)
        if legacy_names:
            checkpoint["legacy_names"] = True
        section = None if optimizer is None else _section(optimizer)
        self.config = configure(config, training=training, optimizer=section, checkpoint=checkpoint)
        loaders = (train_loader, val_loader)
        sets = tuple(
            None if loader is None else DatasetImages(loader.dataset) for loader in loaders
        )
        self.recipe = SeedRecipe(self.config.settings, model, sets, loss_fn)

    def train(self) -> dict[str, float]:
        """Train to the end, or go on where the run folder has a checkpoint; return the scores."""
        world = init_distributed(self.config.training.device)
        trainer = Trainer(self.config, self.recipe, world)
        self.model = trainer.model
        return trainer.train()


def _section(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the section `optimizer` that makes one like this; the engine makes its own."""
    kind, values = type(optimizer), dict(optimizer.defaults)
    section = {"_target_": f"torch.optim.{kind.__name__}", "lr": values.pop("lr")}
    section["weight_decay"] = values.pop("weight_decay", 0.0)
    arguments = {
        key: values[key] for key in ("betas", "eps", "momentum", "nesterov") if key in values
    }
    return section | {"arguments": {key: _plain(value) for key, value in arguments.items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class DatasetImages:
    """Items of a data set, an image or (image, label), as images of overt.

    Images are PIL's, or tensors (3, H, W) of bytes or of numbers from 0 to 1: not normalized.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.names = [f"item {index}" for index in range(len(dataset))]
        targets = getattr(dataset, "targets", None)
        self.classes = tuple(map(str, getattr(dataset, "classes", ())))
        is_labeled = targets is not None and bool(self.classes)
        self.labels: NDArray[np.int64] = (
            np.asarray(targets, np.int64)
            if is_labeled
            else np.full(len(dataset), UNLABELED, np.int64)
        )

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """The pixels (3, H, W) uint8 and the label of an image."""
        item = self.dataset[index]
        image = item[0] if isinstance(item, tuple | list) else item
        label = int(self.labels[index])
        if not isinstance(image, Tensor):
            image = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        if image.dtype != torch.uint8:
            if float(image.min()) < 0 or float(image.max()) > 1:
                raise DataError(
                    f"item {index} of the data set has numbers from {float(image.min()):.3g} to "
                    f"{float(image.max()):.3g}; give images of 0 to 1 or bytes: the model "
                    "normalizes them itself"
                )
            image = (image * 255).round().to(torch.uint8)
        return image.contiguous(), label


class SeedRecipe(HJEPARecipe):
    """H-JEPA with parts that were made elsewhere."""

    def __init__(
        self,
        settings: Settings,
        model: HJEPA | None,
        images: tuple[DatasetImages | None, ...],
        loss_fn: CustomLoss | None,
    ) -> None:
        super().__init__(settings)
        self.given_model, self.loss_fn = model, loss_fn
        training, held_out = images
        if training is not None:  # without a separate set, these are scored
            readable = ReadableImages(training)
            self.__dict__["sets"] = (
                readable,
                readable if held_out is None else ReadableImages(held_out),
            )

    def __getstate__(self) -> dict[str, Any]:
        # Loader processes read images and draw masks; they do not need the loss, and it may be
        # a closure, which cannot be pickled.
        return super().__getstate__() | {"loss_fn": None}

    def build_model(self) -> HJEPA:
        fresh = super().build_model()
        if self.given_model is None:
            return fresh
        fresh.load_state_dict(self.given_model.state_dict())
        return fresh

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        if self.loss_fn is None:
            return super().loss(model, batch, counts, step)
        output: Output = model(batch.images, batch.layout, batch.second)
        result = self.loss_fn(output.predictions, output.targets)
        loss, numbers = result if isinstance(result, tuple) else (result["loss"], result)
        fraction = len(batch.images) / counts["samples"]
        metrics = {
            name: torch.as_tensor(value, device=loss.device).detach() * fraction
            for name, value in numbers.items()
            if name != "loss"
        }
        return StepOutput({"custom": loss * fraction}, metrics)
