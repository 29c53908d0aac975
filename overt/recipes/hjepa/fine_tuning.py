"""Fine-tuning a classifier from a trained encoder: its weights, learning rates by depth, labels.

Layer decay is that of BEiT and MAE (arXiv:2111.06377, appendix A): a block has a lower learning
rate than the one above it, and the patch embedding has the lowest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from overt.data.images.folder import Images, ReadableImages
from overt.errors import ConfigError, DataError
from overt.nn.vit import VisionTransformer
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import Part
from overt.recipes.hjepa.encoder import CONTEXT, TARGET, fit_encoder, keys_of_encoder
from overt.recipes.hjepa.evaluation import spread_over_classes

log = logging.getLogger(__name__)

ENCODER = CONTEXT[0]
HEAD = "head."


def adapt_encoder(
    tensors: Mapping[str, Tensor],
    vit: VisionTransformer,
    head: Mapping[str, Tensor],
    settings: Mapping[str, Any] | None,
) -> dict[str, Tensor]:
    """Return the scored encoder of a file with a classifier's keys and sizes.

    That is the target encoder if the file has one. A head for other classes is not loaded. Other
    tensors keep their keys, so that the report lists them.
    """
    keys = keys_of_encoder(tensors, vit, TARGET) or keys_of_encoder(tensors, vit, CONTEXT)
    used = set(keys.values())
    adapted = {key: value for key, value in tensors.items() if key not in used}
    fitted = fit_encoder(tensors, keys, vit, settings) if keys else {}
    loaded = {ENCODER + name: value for name, value in fitted.items()}
    replaced = adapted.keys() & loaded.keys()
    if replaced:  # they cannot be listed: the target's tensors have their keys now
        log.info(
            "%d tensors of the file's context encoder are not used: its target encoder is loaded",
            len(replaced),
        )
    adapted |= loaded
    for name, own in head.items():
        other = adapted.get(HEAD + name)
        if other is not None and other.shape != own.shape:
            log.warning(
                "the head of the file is not loaded: %s%s is %s there and %s here",
                *(HEAD, name, tuple(other.shape), tuple(own.shape)),
            )
            return {key: value for key, value in adapted.items() if not key.startswith(HEAD)}
    return adapted


def layer_groups(
    model: nn.Module, depth: int, decay: float, no_decay: Sequence[str]
) -> list[dict[str, Any]]:
    """Return optimizer groups by depth, the head's first: `lr_scale` is `decay` ** layers above.

    Biases, norms and other vectors have no weight decay, nor parameters whose last name is listed.
    """
    groups: dict[tuple[int, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and name.rpartition(".")[2] not in no_decay
            groups.setdefault((_layer(name, depth), decays), []).append((name, parameter))
    return [
        {"params": pairs, "lr_scale": decay ** (depth + 1 - layer)}
        | ({} if decays else {"weight_decay": 0.0})
        for (layer, decays), pairs in sorted(groups.items(), reverse=True, key=lambda item: item[0])
    ]


def _layer(name: str, depth: int) -> int:
    """Return 0 for the embedding, 1 to `depth` for the blocks, then final norm and head."""
    if not name.startswith(ENCODER):
        return depth + 1
    first, *rest = name.removeprefix(ENCODER).split(".")
    if first == "blocks":
        return 1 + int(rest[0])
    return depth + 1 if first == "norm" else 0


def labeled_images(images: ReadableImages, settings: Settings) -> Images:
    """Return the images that a classifier learns from: all, or `data.label_fraction` of them."""
    width, classes = settings.model.head.width, len(images.classes)
    if classes == 0:
        raise DataError(
            f"data.root={settings.data.root} has no classes, and a classifier learns them; put "
            "each class into a separate folder, and set data.labeled=true"
        )
    if classes > width:
        raise ConfigError(
            f"model.head.width={width}, but data.root={settings.data.root} has {classes} classes; "
            f"set model.head.width={classes}"
        )
    if settings.data.mixture:
        raise ConfigError(
            "data.mixture has images without labels, from which a classifier learns nothing; set "
            "data.mixture=[]"
        )
    fraction = settings.data.label_fraction
    if fraction == 1:
        return images
    count = max(classes, round(fraction * len(images)))  # at least one of each class
    return Part(images, spread_over_classes(images.labels, count))
