"""An image encoder whose frozen features are scored: the common base of all models here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

from torch import Tensor, nn

from overt.errors import CheckpointError
from overt.nn.vit import Grid, VisionTransformer
from overt.recipes.hjepa.model_config import ENCODERS, parts_of_name

# Prefixes of encoder keys: here, in I-JEPA, in timm.
CONTEXT = ("context_encoder.vit.", "encoder.", "")
TARGET = ("target_encoder.vit.", "target_encoder.")


class Encoder(nn.Module):
    """The transformer under the name that the reference uses."""

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        self.vit = vit


class FeatureModel(nn.Module):
    """A trained encoder and, if the method has one, its EMA as target."""

    def __init__(
        self, encoder: VisionTransformer, pixels: nn.Module | None, use_target_encoder: bool
    ) -> None:
        super().__init__()
        self.pixels = nn.Identity() if pixels is None else pixels  # bytes to numbers
        self.context_encoder = Encoder(encoder)
        # A copy of the initialized context encoder: both start equal.
        self.target_encoder = (
            deepcopy(self.context_encoder).requires_grad_(False).eval()
            if use_target_encoder
            else None
        )

    def train(self, mode: bool = True) -> Self:
        """Set the mode, but keep the target encoder in evaluation mode."""
        super().train(mode)
        if self.target_encoder is not None:
            self.target_encoder.eval()
        return self

    def scored_encoder(self, use_target_encoder: bool = True) -> Encoder:
        """Return the target encoder if there is one and it is requested."""
        use_target = use_target_encoder and self.target_encoder is not None
        encoder = self.target_encoder if use_target else self.context_encoder
        assert encoder is not None
        return encoder

    def summarize(self, tokens: Tensor) -> Tensor:
        """Return one vector per image, (B, D): the class token, else the mean of all tokens."""
        return tokens[:, 0] if self.context_encoder.vit.prefix else tokens.mean(1)

    def extract_features(
        self, images: Tensor, level: int = 0, use_target_encoder: bool = True
    ) -> Tensor:
        """Return the features of all patches, (B, N, D)."""
        vit = self.scored_encoder(use_target_encoder).vit
        tokens: Tensor = vit(self.pixels(images))
        return tokens[:, vit.prefix :]

    def last_features(self, images: Tensor, layers: int = 1) -> list[Tensor]:
        """Return patch features (B, N, D) after each of the last blocks, normed."""
        vit = self.scored_encoder().vit
        tokens = vit.last_tokens(self.pixels(images), layers)
        return [layer[:, vit.prefix :] for layer in tokens]

    def adapt_tensors(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors as they are, unless they are of an encoder with other heads."""
        vit = self.context_encoder.vit
        keys = keys_of_encoder(tensors, vit, CONTEXT[:1])
        if keys:
            _refuse_another_encoder(tensors, keys, vit, settings)
        return dict(tensors)


def keys_of_encoder(
    tensors: Mapping[str, Tensor], vit: VisionTransformer, prefixes: Sequence[str]
) -> dict[str, str]:
    """Return the encoder keys of a file by their names in `vit`, after the first prefix."""
    names = vit.state_dict().keys()
    for prefix in prefixes:
        keys = {name: prefix + name for name in names if prefix + name in tensors}
        if keys:
            return keys
    return {}


def fit_encoder(
    tensors: Mapping[str, Tensor],
    keys: Mapping[str, str],
    vit: VisionTransformer,
    settings: Mapping[str, Any] | None,
) -> dict[str, Tensor]:
    """Return the tensors of a file under `keys` by their names in `vit`, and in its sizes."""
    part = {name: tensors[key] for name, key in keys.items()}
    fitted = vit.fit(part, grid_of_run(part, settings))  # refuses another width
    _refuse_another_encoder(tensors, keys, vit, settings)
    return fitted


def _refuse_another_encoder(
    tensors: Mapping[str, Tensor],
    keys: Mapping[str, str],
    vit: VisionTransformer,
    settings: Mapping[str, Any] | None,
) -> None:
    """Refuse what no shape shows: trained blocks above those of `vit`, and other heads."""
    name, key = next(iter(keys.items()))
    block = re.compile(re.escape(key.removesuffix(name)) + r"blocks\.(\d+)\.")
    numbers = [int(match[1]) for match in map(block.match, tensors) if match]
    blocks, own = max(numbers, default=-1) + 1, len(vit.blocks)
    if blocks > own:
        raise CheckpointError(
            f"the encoder in the file has {blocks} blocks, the model's has {own}. Set model.depth="
            f"{blocks} (or the model.encoder_type of the file), or give a file of this depth."
        )
    heads, own = heads_of_run(settings), vit.norm.weight.numel() // vit.head_width
    if heads is not None and heads != own:
        raise CheckpointError(
            f"the encoder in the file was trained with {heads} attention heads, the model's has "
            f"{own}. Set model.num_heads={heads} (or the model.encoder_type of the file)."
        )


def heads_of_run(settings: Mapping[str, Any] | None) -> int | None:
    """Return the attention heads of the encoder of the run that wrote a file, if known."""
    model = (settings or {}).get("model")
    if not isinstance(model, Mapping):
        return None
    parts = parts_of_name(str(model.get("encoder_type")))
    heads = model.get("num_heads") if parts is None else ENCODERS[parts[0]].heads
    return heads if isinstance(heads, int) else None  # may be another recipe's


def grid_of_run(part: Mapping[str, Tensor], settings: Mapping[str, Any] | None) -> Grid | None:
    """Return the patch grid (down, across) of the run that an encoder comes from, if known."""
    size = ((settings or {}).get("data") or {}).get("image_size")
    kernel = part.get("patch_embed.proj.weight")
    if not isinstance(size, list) or len(size) != 2 or kernel is None:  # may be another recipe's
        return None
    return size[0] // kernel.shape[-1], size[1] // kernel.shape[-1]
