"""The training with Accelerate."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from shared import BATCH, HELD_OUT, LOG_EVERY, SAMPLES, Points, fill, make_model, training_loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def train(steps: int, folder: Path) -> nn.Module:
    seedable = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=seedable)
    set_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Points(SAMPLES, seed=1), BATCH, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, saved = 0, folder / "accelerate"
    if saved.exists():
        accelerator.load_state(str(saved))
        step = json.loads((saved / "step.json").read_text())
    with open(folder / "accelerate.jsonl", "a") as log:
        while step < steps:
            loader.set_epoch(step // len(loader))
            for inputs, labels in accelerator.skip_first_batches(loader, step % len(loader)):
                loss = training_loss(model(inputs), labels)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % LOG_EVERY == 0:
                    log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
                if step == steps:
                    break
    accelerator.save_state(str(saved))
    (saved / "step.json").write_text(json.dumps(step))
    return accelerator.unwrap_model(model)


def evaluate() -> float:
    accelerator = Accelerator(cpu=True)
    model = make_model().eval()
    fill(model)
    loader = DataLoader(Points(HELD_OUT, seed=2), BATCH)
    model, loader = accelerator.prepare(model, loader)
    found = []
    with torch.no_grad():
        for inputs, labels in loader:
            losses = F.cross_entropy(model(inputs), labels, reduction="none")
            found.append(accelerator.gather_for_metrics(losses))
    return float(torch.cat(found).double().mean())
