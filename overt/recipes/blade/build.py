"""Build models from their settings and load the weights they name."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from overt.errors import CheckpointError
from overt.files.yaml_text import read_yaml
from overt.geometry.body import BodyModel
from overt.geometry.body_files import load_body
from overt.nn.dinov2 import DinoVisionTransformer
from overt.nn.pretrained import read_weights, weight_file
from overt.recipes.blade.config import (
    CONV,
    BodySettings,
    BranchSettings,
    DepthSettings,
    PoseModelSettings,
)
from overt.recipes.blade.depthnet import (
    ConvBackbone,
    DepthDecoder,
    DepthHead,
    DepthNet,
    make_interface,
)
from overt.recipes.blade.dpt import DepthAnything
from overt.recipes.blade.posenet import PoseBranch, PoseHeads, PoseNet
from overt.recipes.blade.resnet import ResNet

logger = logging.getLogger(__name__)

CONV_STRIDE = 16
# With fp8, of all but the linear layers of the encoder's blocks.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


def build_backbone(settings: DepthSettings, size: int) -> DepthAnything | ConvBackbone:
    """Return the depth backbone for crops of `size` pixels."""
    if settings.encoder == CONV:
        channels = tuple(settings.channels // 2**step for step in (3, 2, 1, 0))
        return ConvBackbone(channels)
    sizes = settings.backbone()
    encoder = DinoVisionTransformer((size, size), sizes.width, sizes.depth, sizes.heads)
    return DepthAnything(encoder, sizes.taps, sizes.channels, sizes.features)


def build_depthnet(settings: DepthSettings, size: int) -> DepthNet:
    """Return DepthNet for crops of `size` pixels; load its backbone if a file is named."""
    backbone = build_backbone(settings, size)
    is_conv = isinstance(backbone, ConvBackbone)
    channels = settings.channels
    interface = nn.Identity() if is_conv else make_interface(backbone.features, channels)
    # Convolutions of stride 2 round up.
    map_side = math.ceil(size / CONV_STRIDE) if is_conv else math.ceil(settings.map_size / 4)
    head = settings.head
    decoder = DepthDecoder(
        channels,
        head.num_heads,
        head.hidden,
        head.layers,
        head.dropout,
        head.max_depth,
        places=map_side**2 if head.places else None,
        start_bias=head.start_bias,
    )
    model = DepthNet(
        backbone,
        interface,
        DepthHead(decoder),
        map_size=settings.map_size,
        freeze_backbone=settings.freeze_backbone,
        save_frozen=settings.save_frozen,
        backbone_dtype=DTYPES[settings.backbone_precision],
        backbone_fp8=settings.backbone_precision == "fp8",
        chunk=settings.backbone_batch,
    )
    if settings.backbone_checkpoint is not None:
        source = settings.backbone_checkpoint
        tensors = read_weights(source, "model.depth.backbone_checkpoint")
        model.load_backbone(tensors, source, resize=True)
    return model


def build_branch(settings: BranchSettings, silhouette: bool = False) -> PoseBranch:
    """Return a branch of PoseNet; load its ResNet if a file is named."""
    resnet = ResNet(settings.width, settings.blocks, settings.stem, settings.norm)
    if settings.backbone_checkpoint is not None:
        source = settings.backbone_checkpoint
        tensors = read_weights(source, "model.branch.backbone_checkpoint")
        current = resnet.state_dict()
        part = {name: tensors[name] for name in current if name in tensors}
        _refuse_other_resnet(source, part, current)
        resnet.load_state_dict(part)
    sizes = (settings.features, settings.num_heads, settings.layers)
    return PoseBranch(resnet, *sizes, silhouette)


def _refuse_other_resnet(
    source: str, part: Mapping[str, Tensor], current: Mapping[str, Tensor]
) -> None:
    """Refuse weights that lack tensors of the ResNet, or have them in other shapes."""
    misfits = [name for name in current if name not in part]
    problem = "lacks"
    if not misfits:
        misfits = [name for name, value in part.items() if value.shape != current[name].shape]
        problem = "has other shapes of"
    if misfits:
        raise CheckpointError(
            f"model.branch.backbone_checkpoint={source} {problem} {len(misfits)} of {len(current)} "
            f"tensors, such as {misfits[0]}; give weights of a ResNet with torchvision's keys, and "
            "set model.branch.width, blocks, stem and norm to those of the file"
        )


def build_posenet(settings: PoseModelSettings, depth_size: int) -> PoseNet:
    """Return PoseNet on top of the stage-1 checkpoint, and of a base estimator if one is named."""
    depthnet = build_depthnet(settings.depth, depth_size) if settings.tz_conditioning else None
    model = PoseNet(
        build_branch(settings.branch, settings.silhouette_head),
        PoseHeads(settings.branch.features, settings.keypoint_head, settings.keypoint_visibility),
        depthnet=depthnet,
        with_base=settings.base_checkpoint is not None,
        control_output=settings.control_output,
        save_frozen=settings.depth.save_frozen,
    )
    if depthnet is not None and settings.depthnet_checkpoint is not None:
        source = settings.depthnet_checkpoint
        if settings.depth.save_frozen and not Path(source).exists():
            raise CheckpointError(
                f"model.depthnet_checkpoint={source}: no such checkpoint; set it to where that is. "
                "Checkpoints of this PoseNet hold DepthNet too (model.depth.save_frozen=true): to "
                "evaluate one or to estimate people, model.depthnet_checkpoint=null is enough"
            )
        depthnet.load_depthnet(read_weights(source, "model.depthnet_checkpoint"), source)
        warn_of_other_settings(settings.depth, source)
        model.has_depthnet = True
    if settings.base_checkpoint is not None:
        source = settings.base_checkpoint
        model.load_base(read_weights(source, "model.base_checkpoint"), source)
    return model


def warn_of_other_settings(settings: DepthSettings, source: str) -> None:
    """Log where DepthNet computes otherwise than in stage 1, although its tensors fit."""
    file = Path(source) / "config.yaml"
    if not file.is_file():  # a published or an exported one
        return
    config = read_yaml(file)
    stored = OmegaConf.select(config, "model.depth") if isinstance(config, DictConfig) else None
    if not isinstance(stored, DictConfig):
        return
    keys = ["map_size", "head.num_heads", "head.max_depth"]
    if stored.get("freeze_backbone"):  # one that was trained had the precision of its run
        keys.append("backbone_precision")
    current = OmegaConf.structured(settings)
    differing = []
    for key in keys:
        before, now = OmegaConf.select(stored, key), OmegaConf.select(current, key)
        if before is not None and before != now:
            differing.append(f"model.depth.{key}={before}, here {now}")
    if differing:
        logger.warning(
            "model.depthnet_checkpoint=%s was trained with other settings, which change the depth "
            "that it predicts: %s. Set them as in stage 1 unless this is intended",
            source,
            "; ".join(differing),
        )


def require_depth_files(settings: DepthSettings) -> None:
    """Refuse a file of weights that is not there, before people are rendered for minutes."""
    if settings.backbone_checkpoint is not None:
        weight_file(settings.backbone_checkpoint, "model.depth.backbone_checkpoint")


def require_pose_files(settings: PoseModelSettings) -> None:
    """Refuse a file of weights that is not there, before people are rendered for minutes."""
    files = {
        "model.base_checkpoint": settings.base_checkpoint,
        "model.branch.backbone_checkpoint": settings.branch.backbone_checkpoint,
    }
    if settings.tz_conditioning:
        require_depth_files(settings.depth)
        files["model.depthnet_checkpoint"] = settings.depthnet_checkpoint
    for key, file in files.items():
        if file is not None:
            weight_file(file, key)


def build_body(settings: BodySettings) -> BodyModel:
    """Return the body model named by the settings."""
    return BodyModel(load_body(settings.model, "model.body.model", settings.joint_regressor))
