"""DepthNet: the distance of the pelvis from the camera, in meters, from a square crop of a person.

Features of a depth model, two strided convolutions, and one query that attends to all positions.
Keys are the published ones. Section 3.2 of arXiv:2412.08640. Letters: B crops, C channels.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from overt.data.images.transforms import Normalize
from overt.errors import CheckpointError
from overt.nn.dinov2 import PATCH
from overt.nn.fp8 import quantize_linears
from overt.ops.attention.api import attention_in_layers
from overt.ops.convolve import Conv2d
from overt.recipes.blade.dpt import DepthAnything
from overt.recipes.blade.norm import SharedBatchNorm2d

BACKBONE = "depth_backbone."
POSITIONS = "pretrained.pos_embed"  # (1, 1 + patches, features)
# In the published files: an unused layer.
DEAD = ("depth_head.dec_z.conv.weight", "depth_head.dec_z.conv.bias")


class DepthDecoder(nn.Module):
    """One learned query attends to all positions of a map and is decoded to a depth."""

    places: Tensor | None

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        layers: int,
        dropout: float,
        max_depth_m: float,
        places: int | None = None,
        start_bias: float | None = None,
    ) -> None:
        super().__init__()
        self.max_depth_m = max_depth_m
        self.query = nn.Embedding(1, width)
        layer = nn.TransformerDecoderLayer(width, heads, hidden, dropout, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, layers)
        self.z_out = nn.Linear(width, 1)
        # The published head has no position embedding; a small map benefits from one.
        table = None if places is None else nn.Parameter(0.02 * torch.randn(places, width))
        self.register_parameter("places", table)
        if start_bias is not None:
            nn.init.constant_(self.z_out.bias, start_bias)

    def forward(self, maps: Tensor) -> Tensor:  # (B, C, H, W) to (B, 1) meters
        memory = maps.flatten(2).transpose(1, 2)  # (B, H W, C)
        if self.places is not None:
            memory = memory + self.places
        query = self.query.weight.expand(len(maps), 1, -1).to(memory.dtype)
        with attention_in_layers(query, memory):
            decoded = self.decoder(query, memory)
        return self.max_depth_m * torch.sigmoid(self.z_out(decoded)[:, 0].float())


class DepthHead(nn.Module):
    """Holds the decoder under its published name."""

    def __init__(self, decoder: DepthDecoder) -> None:
        super().__init__()
        self.dec_z = decoder

    def forward(self, maps: Tensor) -> Tensor:
        return self.dec_z(maps)  # type: ignore[no-any-return]


def make_interface(inputs: int, channels: int) -> nn.Sequential:
    """Two convolutions, each of which halves a map."""
    layers: list[nn.Module] = []
    for count in (inputs, channels):
        layers += [
            Conv2d(count, channels, 3, 2, 1),
            SharedBatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class ConvBackbone(nn.Module):
    """A small convolutional encoder for small pictures: maps of 1/16 of their size."""

    def __init__(self, channels: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for index, count in enumerate(channels):
            kernel = 5 if index == 0 else 3
            layers += [
                Conv2d(before, count, kernel, 2, kernel // 2, bias=False),
                SharedBatchNorm2d(count),
                nn.ReLU(inplace=True),
            ]
            if index > 0:
                layers.append(ResidualBlock(count))
            before = count
        self.layers = nn.Sequential(*layers)
        self.features = before

    def forward(self, images: Tensor, output: int) -> Tensor:
        """Return features at 1/16 of the picture size; `output` is for fixed-size backbones."""
        return self.layers(images)  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1 = SharedBatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = SharedBatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(maps)).relu()
        return (maps + self.norm2(self.conv2(inner))).relu()  # type: ignore[no-any-return]


class DepthNet(nn.Module):
    """Predict depths (B, 1) in meters from uint8 crops (B, 3, H, W).

    A frozen backbone runs `chunk` crops at a time in its own precision and is not saved in
    checkpoints unless `save_frozen`: a hash of its weights is saved instead, so that the head is
    never used on top of another backbone.
    """

    backbone_mark: Tensor

    def __init__(
        self,
        backbone: DepthAnything | ConvBackbone,
        interface: nn.Module,
        head: DepthHead,
        *,
        map_size: int = 224,
        freeze_backbone: bool = True,
        save_frozen: bool = False,
        backbone_dtype: torch.dtype = torch.float32,
        backbone_fp8: bool = False,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.pixels = Normalize()
        self.depth_backbone = backbone
        self.depth_interface = interface
        self.depth_head = head
        self.map_size, self.chunk = map_size, chunk
        self.freeze_backbone = freeze_backbone
        self.has_backbone_weights = not freeze_backbone
        self.register_buffer("backbone_mark", torch.zeros(1, dtype=torch.int64))
        if isinstance(backbone, DepthAnything):
            # Not used: the layers of the depth map and the class token.
            backbone.depth_head.scratch.output_conv1.requires_grad_(False)
            backbone.depth_head.scratch.output_conv2.requires_grad_(False)
            backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if freeze_backbone:
            backbone.requires_grad_(False).eval().to(backbone_dtype)
            if backbone_fp8:
                assert isinstance(backbone, DepthAnything), "no transformer blocks to round"
                quantize_linears(backbone.pretrained.blocks)
            if not save_frozen:
                self.register_state_dict_post_hook(_drop_backbone)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_note_backbone)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> DepthNet:
        """Set the mode, but keep a frozen backbone in evaluation mode."""
        super().train(mode)
        if self.freeze_backbone:
            self.depth_backbone.eval()
        return self

    def features(self, images: Tensor) -> Tensor:
        """Return the backbone's features of uint8 crops (B, 3, H, W)."""
        if not self.freeze_backbone:
            return self.depth_backbone(self.pixels(images), self.map_size)  # type: ignore[no-any-return]
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            return self._frozen_features(images)

    def _frozen_features(self, images: Tensor) -> Tensor:
        backbone, size = self.depth_backbone, self.map_size
        dtype = next(backbone.parameters()).dtype  # float32 in an average of weights
        chunks = torch.split(images, self.chunk or len(images))
        if len(chunks) == 1 or isinstance(backbone, ConvBackbone):
            parts = [backbone(self.pixels(chunk).to(dtype), size) for chunk in chunks]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        # Every chunk is written where it stays: its features are larger than any layer's.
        shape = (len(images), size, size, backbone.features)
        whole = torch.empty(shape, dtype=dtype, device=images.device)
        for chunk, out in zip(chunks, torch.split(whole, len(chunks[0])), strict=True):
            backbone(self.pixels(chunk).to(dtype), size, out)
        return whole.permute(0, 3, 1, 2)

    def from_features(self, features: Tensor) -> Tensor:
        """Return depths (B, 1) from the backbone's features."""
        if not torch.is_autocast_enabled(features.device.type):
            features = features.float()
        return self.depth_head(self.depth_interface(features))  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        return self.from_features(self.features(images))

    def require_weights(self, remedy: str) -> None:
        """Reject a frozen backbone without weights."""
        if not self.has_backbone_weights:
            raise CheckpointError(
                "the frozen depth backbone has no weights: no file was given, and the "
                f"checkpoint was saved without frozen parameters. {remedy}"
            )

    def load_backbone(
        self, tensors: Mapping[str, Tensor], source: str, resize: bool = False
    ) -> None:
        """Load a backbone from DepthNet, Depth-Anything-V2, or only the encoder from DINOv2.

        With `resize` its crops may have another size: the position table is resized.
        """
        current = self.depth_backbone.state_dict()
        for prefix, inner in ((BACKBONE, ""), ("", ""), ("", "pretrained.")):
            part = {
                inner + name.removeprefix(prefix): value
                for name, value in tensors.items()
                if name.startswith(prefix)
            }
            if any(name in current for name in part):
                break
        else:
            part = {}
        part = {name: value for name, value in part.items() if name in current}
        if resize and POSITIONS in part:
            part[POSITIONS] = self._fit_positions(part[POSITIONS])
        missing = [name for name in current if name not in part]
        if inner:  # encoder only: the rest keeps its random initialization
            missing = [name for name in missing if name.startswith(inner)]
        _refuse_misfit(source, part, current, missing, "the depth backbone")
        self.depth_backbone.load_state_dict(part, strict=False)
        self.has_backbone_weights = True
        self.backbone_mark.fill_(fingerprint(part))

    def load_depthnet(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Load a stage-1 checkpoint, overt's or the published one; every tensor must match."""
        mark = tensors.get("backbone_mark")
        if any(name.startswith(BACKBONE) for name in tensors):
            self.load_backbone(tensors, source)
        elif self.freeze_backbone:
            self.require_weights(
                f"{source} holds only what stage 1 trained; set model.depth.backbone_checkpoint to "
                "the file that stage 1 was given."
            )
            if mark is not None and int(mark) != int(self.backbone_mark):
                raise CheckpointError(
                    f"{source} was trained on top of another depth backbone than the one that is "
                    "loaded, or of one for crops of another size; set "
                    "model.depth.backbone_checkpoint, model.depth.encoder and data.depth_size to "
                    "those of stage 1, which its config.yaml names."
                )
        current = {
            name: value
            for name, value in self.state_dict().items()
            if name.startswith(("depth_interface.", "depth_head."))
        }
        part = {name: value for name, value in tensors.items() if name in current}
        missing = [name for name in current if name not in part]
        _refuse_misfit(source, part, current, missing, "DepthNet")
        self.load_state_dict(part, strict=False)

    def adapt_tensors(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors without the published unused layer, for crops of this size."""
        adapted = {name: value for name, value in tensors.items() if name not in DEAD}
        table = adapted.get(BACKBONE + POSITIONS)
        if table is not None and isinstance(self.depth_backbone, DepthAnything):
            adapted[BACKBONE + POSITIONS] = self._fit_positions(table)
        return adapted

    def _fit_positions(self, table: Tensor) -> Tensor:
        encoder = cast(DepthAnything, self.depth_backbone).pretrained
        return encoder.fit({"pos_embed": table})["pos_embed"]


def fingerprint(tensors: Mapping[str, Tensor]) -> int:
    """Return a hash of the weights."""
    mark = 0
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous().flatten()
        mark = zlib.crc32(value.view(torch.uint8).numpy().data, mark)
    return mark


def _refuse_misfit(
    source: str,
    part: Mapping[str, Tensor],
    current: Mapping[str, Tensor],
    missing: list[str],
    network: str,
) -> None:
    if missing:
        raise CheckpointError(
            f"{source} does not fit {network}: it lacks {len(missing)} tensors, such as "
            f"{missing[0]}. Check that it is a checkpoint of this model and of the same "
            "model.depth.encoder."
        )
    wrong = [name for name, value in part.items() if value.shape != current[name].shape]
    if wrong == [POSITIONS] and part[POSITIONS].shape[2:] == current[POSITIONS].shape[2:]:
        counts = (tensors[POSITIONS].shape[1] - 1 for tensors in (part, current))
        in_file, here = (PATCH * math.isqrt(max(count, 0)) for count in counts)
        raise CheckpointError(
            f"{source} is for crops of {in_file} pixels, but data.depth_size={here}; set "
            f"data.depth_size={in_file}"
        )
    if wrong:
        name = wrong[0]
        what, remedy = _misfit(name)
        raise CheckpointError(
            f"{source} is of {what} than model.depth says: {name} is "
            f"{tuple(part[name].shape)} in the file and {tuple(current[name].shape)} here, and so "
            f"for {len(wrong)} tensors. {remedy}, or give a checkpoint of this one."
        )


def _misfit(name: str) -> tuple[str, str]:
    """Return what differs if a tensor has another shape, and what to do."""
    if name == "depth_head.dec_z.places":
        return "another map", "Set data.depth_size (encoder=conv) or model.depth.map_size as there"
    if name.startswith(("depth_head.", "depth_interface.")):
        return "another head", "Set model.depth.channels and model.depth.head as there"
    return "another backbone", (
        "Set model.depth.encoder to that of the file (vits, vitb or vitl; conv: also "
        "model.depth.channels)"
    )


def _drop_backbone(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + BACKBONE)]:
        del state[name]


def _note_backbone(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    if any(name.startswith(prefix + BACKBONE) for name in state):
        assert isinstance(module, DepthNet)
        module.has_backbone_weights = True
