"""Settings of encoders, predictor and EMA target. This file does not import torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from omegaconf import MISSING

from overt.checks import each_within, one_of, within
from overt.errors import ConfigError, nearest

CUSTOM = "custom"


class EncoderSizes(NamedTuple):
    width: int
    depth: int
    heads: int
    mlp_ratio: float = 4.0


ENCODERS = {
    "tiny": EncoderSizes(192, 12, 3),
    "small": EncoderSizes(384, 12, 6),
    "base": EncoderSizes(768, 12, 12),
    "large": EncoderSizes(1024, 24, 16),
    "huge": EncoderSizes(1280, 32, 16),
    "giant": EncoderSizes(1408, 40, 16, 48 / 11),
}


def parts_of_name(encoder_type: str) -> tuple[str, str] | None:
    """Return the size and the pixels of a patch of a known encoder's name; None for others."""
    match = re.fullmatch(r"vit_([a-z]+)_patch(\d+)_(\d+)", encoder_type)
    return None if match is None or match[1] not in ENCODERS else (match[1], match[2])


@dataclass
class PredictorSettings:
    # narrow (I-JEPA's, with a separate position table) or reference (H-JEPA's, which takes the
    # encoder's width and table)
    kind: str = MISSING
    # features of a token in the narrow predictor; null: those of the encoder
    width: int | None = MISSING
    # blocks of the predictor
    depth: int = MISSING
    # attention heads of a block; divides the width
    num_heads: int = MISSING
    # hidden features of a block's MLP over the width
    mlp_ratio: float = MISSING

    def __post_init__(self) -> None:
        each_within("model.predictor", self, ("width", "depth", "num_heads"), 1)
        within("model.predictor.mlp_ratio", self.mlp_ratio, 0, above=True)


@dataclass
class EmaSettings:
    # momentum of the target encoder (EMA) at the start of training
    momentum: float = MISSING
    # momentum at the end of training
    momentum_end: float = MISSING
    # epochs before it begins to rise
    momentum_warmup_epochs: float = MISSING
    # above 1 the increase is longer than training and ends early (I-JEPA: ipe_scale)
    stretch: float = MISSING

    def __post_init__(self) -> None:
        each_within("model.ema", self, ("momentum", "momentum_end"), 0, 1)
        within("model.ema.momentum_warmup_epochs", self.momentum_warmup_epochs, 0)
        within("model.ema.stretch", self.stretch, 0, above=True)


@dataclass
class RopeSettings:
    # rotate queries and keys by row and column of their patch (RoPE), in addition to the position
    # table
    use_rope: bool = MISSING
    # base of the rotation frequencies: the larger, the slower the slowest
    theta: float = MISSING

    def __post_init__(self) -> None:
        within("model.rope.theta", self.theta, 0, above=True)


@dataclass
class FpnSettings:
    # mix the levels from coarse to fine, as a feature pyramid does
    use_fpn: bool = MISSING
    # features of a token in the pyramid; null: those of the encoder
    feature_dim: int | None = MISSING
    # add or concat: how a level is merged with the one above
    fusion_method: str = MISSING

    def __post_init__(self) -> None:
        within("model.fpn.feature_dim", self.feature_dim, 1)


@dataclass
class LayerScaleSettings:
    # learned scales of the residual branches
    use_layerscale: bool = MISSING
    # value that the scales start from
    init_value: float = MISSING


@dataclass
class HeadSettings:
    # of SimCLR: hidden features of its head. Only SimCLR and classifiers have a head
    hidden: int = 2048
    # of SimCLR: output features of its head; of a classifier: number of classes
    width: int = 128
    # of a classifier: learning rate of a block relative to that of the block above it; the head has
    # optimizer.lr. Below 1 to fine-tune trained weights
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        each_within("model.head", self, ("hidden", "width"), 1)
        within("model.head.layer_decay", self.layer_decay, 0, 1, above=True)


@dataclass
class ModelSettings:
    # vit_{tiny,small,base,large,huge,giant}_patch{pixels}_{image size}, or custom, built from the
    # four sizes below
    encoder_type: str = MISSING
    # features of a token
    embed_dim: int = MISSING
    # blocks of the encoder; null: as encoder_type says
    depth: int | None = MISSING
    # attention heads of a block; null: as encoder_type says
    num_heads: int | None = MISSING
    # pixels of a patch's side; null: as encoder_type says
    patch_size: int | None = MISSING
    # a class token in addition to the patches
    class_token: bool = MISSING
    # positions of the patches: learned, or sincos (fixed)
    positions: str = MISSING
    # how hidden patches are treated: drop (they never enter the encoder) or zero (the reference)
    hidden_tokens: str = MISSING
    # initialization: normal (standard deviation 0.02) or fan_in (number of inputs ** -0.5; narrow
    # models need it)
    initialization: str = MISSING
    # probability of dropping a residual branch in the last block (stochastic depth); increases from
    # 0 in the first
    drop_path_rate: float = MISSING
    # levels at which predictions and targets are compared; 1: patches only, as in I-JEPA
    num_hierarchies: int = MISSING
    # regions of the levels: grid (squares of patches) or sequence (neighbors in the list of hidden
    # patches, the reference)
    pooling: str = MISSING
    # a linear layer per level: none, predictions (targets are unchanged) or shared (the reference:
    # predictions and targets, which the layer itself can make alike)
    projection: str = MISSING
    # norm after the projection: layernorm, batchnorm (over a process's micro-batch) or none
    projection_norm: str = MISSING
    # standardize each target token (I-JEPA)
    normalize_targets: bool = MISSING
    predictor: PredictorSettings = MISSING
    # false: targets come from the context encoder itself; see loss.detach_targets
    use_target_encoder: bool = MISSING
    ema: EmaSettings = MISSING
    rope: RopeSettings = MISSING
    fpn: FpnSettings = MISSING
    layerscale: LayerScaleSettings = MISSING
    # parameters of two or more dimensions without weight decay, by the last part of their name;
    # those of one dimension never have it
    no_decay: list[str] = MISSING
    head: HeadSettings = field(default_factory=HeadSettings)

    def __post_init__(self) -> None:
        one_of("model.predictor.kind", self.predictor.kind, ("narrow", "reference"))
        one_of("model.positions", self.positions, ("learned", "sincos"))
        one_of("model.hidden_tokens", self.hidden_tokens, ("drop", "zero"))
        one_of("model.initialization", self.initialization, ("normal", "fan_in"))
        one_of("model.pooling", self.pooling, ("grid", "sequence"))
        one_of("model.projection", self.projection, ("none", "predictions", "shared"))
        one_of("model.projection_norm", self.projection_norm, ("layernorm", "batchnorm", "none"))
        one_of("model.fpn.fusion_method", self.fpn.fusion_method, ("add", "concat"))
        sizes_given = ("embed_dim", "depth", "num_heads", "patch_size", "num_hierarchies")
        each_within("model", self, sizes_given, 1)
        within("model.drop_path_rate", self.drop_path_rate, 0, 1, below=True)
        if self.fpn.use_fpn and self.projection == "none":
            raise ConfigError(
                "model.fpn.use_fpn=true ends in the projections, but model.projection=none; set "
                "model.projection=predictions"
            )
        sizes = self.sizes()
        if self.embed_dim != sizes.width:
            raise ConfigError(
                f"model.embed_dim={self.embed_dim}, but {self.encoder_type} has {sizes.width}; set "
                f"model.embed_dim={sizes.width}, or model.encoder_type=custom with other sizes"
            )
        self._check_widths(sizes)

    def _check_widths(self, sizes: EncoderSizes) -> None:
        wide = self.predictor.kind == "reference" or self.predictor.width is None
        width = self.embed_dim if wide else self.predictor.width
        assert width is not None
        for key, total, divisor in (
            ("model.embed_dim", self.embed_dim, sizes.heads),
            ("model.predictor.width", width, self.predictor.num_heads),
        ):
            if total % divisor:
                raise ConfigError(
                    f"{key}={total} is not a multiple of its {divisor} attention heads"
                )
            if total % 4:
                raise ConfigError(f"{key}={total} is not a multiple of 4: positions need that")
        if self.rope.use_rope and (self.embed_dim // sizes.heads) % 4:
            raise ConfigError(
                f"model.rope.use_rope=true needs heads of a multiple of 4 features, not "
                f"{self.embed_dim // sizes.heads}"
            )
        if self.predictor.kind == "reference" and self.predictor.width not in (None, width):
            raise ConfigError(
                "model.predictor.width must be null with model.predictor.kind=reference"
            )

    def sizes(self) -> EncoderSizes:
        """Return the sizes of the encoder, from its name or from the settings."""
        given_sizes = (self.depth, self.num_heads, self.patch_size)
        if self.encoder_type == CUSTOM:
            if None in given_sizes:
                raise ConfigError(
                    "model.encoder_type=custom needs model.depth, model.num_heads and "
                    "model.patch_size"
                )
            assert self.depth is not None
            assert self.num_heads is not None
            return EncoderSizes(self.embed_dim, self.depth, self.num_heads)
        if given_sizes != (None, None, None):
            raise ConfigError(
                f"model.encoder_type={self.encoder_type} fixes the sizes; leave model.depth, "
                "model.num_heads and model.patch_size null, or set model.encoder_type=custom"
            )
        return ENCODERS[self._parts()[0]]

    def patch(self) -> int:
        """Pixels of a patch's side."""
        return self.patch_size if self.patch_size is not None else int(self._parts()[1])

    def _parts(self) -> tuple[str, str]:
        parts = parts_of_name(self.encoder_type)
        if parts is None:
            known = [f"vit_{name}_patch16_224" for name in ENCODERS]
            raise ConfigError(
                f"model.encoder_type={self.encoder_type}{nearest(self.encoder_type, known)}; "
                f"allowed: custom, {', '.join(known)} and other patch sizes of these"
            )
        return parts
