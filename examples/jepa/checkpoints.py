"""Checkpoints by hand: save, keep the best, go on, and hand an encoder to others.

    python examples/jepa/checkpoints.py FOLDER

The trainer does all of this by itself; here is the same CheckpointManager in a loop of one's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from overt import CheckpointManager
from overt.nn.vit import VisionTransformer


def main(folder: Path) -> dict[str, float]:
    """Save five epochs, keep two best, load the best; its metrics."""
    torch.manual_seed(0)
    model = VisionTransformer((32, 32), 4, 64, 3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    manager = CheckpointManager(
        folder, keep_best_n=2, metric_name="val_loss", mode="min", keep_last_n=1, background=True
    )
    for epoch, loss in enumerate((0.9, 0.5, 0.7, 0.4, 0.6)):
        manager.save_checkpoint(epoch, model, optimizer, metrics={"val_loss": loss})
    manager.wait()  # saves are written in the background
    print(f"latest {manager.get_latest_checkpoint()}, best {manager.get_best_checkpoint()}")

    fresh = VisionTransformer((32, 32), 4, 64, 3, 4)
    its_optimizer = torch.optim.AdamW(fresh.parameters(), 1e-3)
    metadata = manager.load_checkpoint(manager.get_best_checkpoint(), fresh, its_optimizer)
    print(f"best was epoch {metadata['epoch']} with {metadata['metrics']}")

    export_encoder(fresh, folder / "encoder.safetensors")
    other = VisionTransformer((32, 32), 4, 64, 3, 4)
    other.load_state_dict(load_file(folder / "encoder.safetensors"))  # timm's key names
    metrics: dict[str, float] = metadata["metrics"]
    return metrics


def export_encoder(encoder: nn.Module, path: Path) -> None:
    """An encoder alone, for timm or anyone who reads safetensors."""
    tensors = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
