"""The training with Lightning Fabric."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from shared import BATCH, HELD_OUT, LOG_EVERY, SAMPLES, Points, fill, make_model, training_loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def train(steps: int, folder: Path) -> nn.Module:
    fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger(str(folder)))
    fabric.seed_everything(0)
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    loader = DataLoader(Points(SAMPLES, seed=1), BATCH, shuffle=True, drop_last=True)
    loader = fabric.setup_dataloaders(loader)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    saved = folder / "fabric.ckpt"
    if saved.exists():
        fabric.load(saved, state)
    while state["step"] < steps:
        for inputs, labels in loader:
            loss = training_loss(model(inputs), labels)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            if state["step"] % LOG_EVERY == 0:
                fabric.log("loss", loss.item(), step=state["step"])
            if state["step"] == steps:
                break
    fabric.save(saved, state)
    return model.module


def evaluate() -> float:
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    model = make_model()
    fill(model)
    model = fabric.setup(model)
    model.eval()
    loader = fabric.setup_dataloaders(DataLoader(Points(HELD_OUT, seed=2), BATCH))
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for inputs, labels in loader:
            losses = F.cross_entropy(model(inputs), labels, reduction="none")
            sums += torch.stack([losses.double().sum(), torch.tensor(len(losses)).double()])
    sums = fabric.all_reduce(sums, reduce_op="sum")
    return float(sums[0] / sums[1])
