"""An encoder as a function of images alone, for ONNX and TorchScript."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overt.recipes.hjepa.encoder import FeatureModel
from overt.tasks import ExportedStep

INPUTS, OUTPUTS = ("images",), ("features", "patch_features")


class EncoderStep(nn.Module):
    """Images in, features out: those that are scored."""

    def __init__(self, model: FeatureModel) -> None:
        super().__init__()
        self.pixels, self.vit = model.pixels, model.scored_encoder().vit

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, D) and (B, N, D) of images (B, 3, H, W) float32 in 0..255."""
        tokens = self.vit(self.pixels(images))[:, self.vit.prefix :]
        return tokens.mean(1), tokens


def make_step(model: FeatureModel, image_size: tuple[int, int]) -> ExportedStep:
    """Return the encoder of a model on the CPU, for any number of images of this size."""
    height, width = image_size
    return ExportedStep(
        EncoderStep(model).eval(),
        (torch.zeros(2, 3, height, width),),
        INPUTS,
        OUTPUTS,
        dict.fromkeys((*INPUTS, *OUTPUTS), 0),
        f"images (B, 3, {height}, {width}) float32 in 0..255, of any number",
        "images",
    )
