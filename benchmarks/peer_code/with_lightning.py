"""The training with the Lightning Trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from shared import BATCH, HELD_OUT, LOG_EVERY, SAMPLES, Points, fill, make_model, training_loss
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch: Any, index: int) -> Tensor:
        inputs, labels = batch
        loss = training_loss(self.model(inputs), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, labels = batch
        loss = F.cross_entropy(self.model(inputs), labels)
        self.log("validation", loss, sync_dist=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def train(steps: int, folder: Path) -> nn.Module:
    pl.seed_everything(0)
    loader = DataLoader(Points(SAMPLES, seed=1), BATCH, shuffle=True, drop_last=True)
    module, saved = Module(), folder / "lightning.ckpt"
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        logger=CSVLogger(str(folder)),
        log_every_n_steps=LOG_EVERY,
        callbacks=[ModelCheckpoint(folder / "lightning", every_n_train_steps=10**9)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=saved if saved.exists() else None)
    trainer.save_checkpoint(saved)
    return module.model


def evaluate() -> float:
    module = Module()
    fill(module.model)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(Points(HELD_OUT, seed=2), BATCH)
    return float(trainer.validate(module, loader, verbose=False)[0]["validation"])
