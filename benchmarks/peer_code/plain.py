"""The training by hand, in plain PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from shared import BATCH, HELD_OUT, LOG_EVERY, SAMPLES, Points, fill, make_model, training_loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(steps: int, folder: Path) -> nn.Module:
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Points(SAMPLES, seed=1), BATCH, shuffle=True, drop_last=True)
    step, saved = 0, folder / "plain.pt"
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    with open(folder / "plain.jsonl", "a") as log:
        while step < steps:
            for inputs, labels in loader:
                loss = training_loss(model(inputs), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % LOG_EVERY == 0:
                    log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
                if step == steps:
                    break
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, saved)
    return model


def evaluate() -> float:
    dist.init_process_group("gloo")
    model = make_model().eval()
    fill(model)
    data = Points(HELD_OUT, seed=2)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, shuffle=False))
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for inputs, labels in loader:
            losses = F.cross_entropy(model(inputs), labels, reduction="none")
            sums += torch.stack([losses.double().sum(), torch.tensor(len(losses)).double()])
    dist.all_reduce(sums)
    dist.destroy_process_group()
    return float(sums[0] / sums[1])
