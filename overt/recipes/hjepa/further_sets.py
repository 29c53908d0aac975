"""Scores on other data than that of training: labeled sets, and images with masks.

Each has baselines: raw pixels scored in the same way and, for masks, the most frequent class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from overt.data.images.folder import ReadableImages
from overt.data.images.segmented import SegmentedImages, open_segmented, scored_folder
from overt.data.images.transforms import EvaluationTransform
from overt.distributed import World, all_reduce_sum
from overt.evaluation import own_batches, read_ahead
from overt.metrics.dense import (
    IGNORED,
    KNearest,
    Labeler,
    Majority,
    confusion,
    mean_iou,
    patch_classes,
    spread_patches,
)
from overt.metrics.features import Features, gather_features, knn_accuracy
from overt.metrics.probe_sweep import fit_linear
from overt.metrics.probes import ProbeSettings
from overt.recipes.hjepa import evaluation
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import HeldOutImages, open_sets, patch_grid
from overt.recipes.hjepa.encoder import FeatureModel

PIXELS = 32  # side that images are reduced to where their pixels are compared
HELD_OUT = 0.2  # fraction of a labeled set without splits that is scored

Sets = tuple[ReadableImages, ReadableImages]


# --- labeled sets --------------------------------------------------------------------------------


def open_labeled(name: str, settings: Settings) -> Sets:
    """Return training and test images of a set of `evaluation.transfer`."""
    root = Path(settings.evaluation.transfer[name])
    data = replace(settings.data, synthetic=None, labeled=True, held_out=HELD_OUT)
    if (root / "train").is_dir():
        return open_sets(replace(data, root=str(root / "train"), val_root=str(scored_folder(root))))
    return open_sets(replace(data, root=str(root), val_root=None))


def transfer_scores(
    name: str, settings: Settings, model: FeatureModel, world: World
) -> dict[str, float]:
    """Return k-NN and probes on a labeled set, and k-NN of raw pixels."""
    training, held_out = (
        HeldOutImages(images, settings) for images in open_labeled(name, settings)
    )
    own = settings.evaluation
    export = None if own.export is None else str(Path(own.export) / name)
    scores = evaluation.score_features(
        model, training, held_out, replace(settings, evaluation=replace(own, export=export)), world
    )
    bank, test = (
        evaluation.collect_features(small_pixels, images, own, world)
        for images in (training, held_out)
    )
    device, k = world.device, min(own.k, len(bank.values))
    scores["pixels_knn_top1"] = knn_accuracy(
        *(bank.values.to(device), bank.labels.to(device)),
        *(test.values.to(device), test.labels.to(device)),
        k=k,
        temperature=own.temperature,
        world=world,
    )
    return scores


def small_pixels(images: Tensor) -> Tensor:
    """Return the pixels of images (B, 3, H, W) as rows of features, in low resolution."""
    height, width = (min(side, PIXELS) for side in images.shape[2:])
    return F.interpolate(images.float(), (height, width), mode="area").flatten(1)


# --- images with masks ---------------------------------------------------------------------------


class MaskedPixels(NamedTuple):
    """Images and masks as the encoder sees them."""

    images: SegmentedImages
    middle: EvaluationTransform

    def read(self, positions: range) -> Features:
        """Return positions, pixels (n, 3, H, W) uint8 and masks (n, H, W) of a batch."""
        pairs = [self.images.read(index) for index in positions]
        pixels = torch.stack([self.middle(image) for image, _ in pairs])
        masks = torch.stack([self.middle.of_mask(mask) for _, mask in pairs])
        return Features(torch.tensor(positions), pixels, masks)


def dense_scores(
    name: str, settings: Settings, model: FeatureModel, world: World
) -> dict[str, float]:
    """Return the mIoU of k-NN and of a linear layer on patch features, with baselines."""
    own, patch = settings.evaluation, settings.model.patch()
    height, width = settings.data.image_size
    middle = EvaluationTransform((height, width), settings.data.margin)
    learned, scored = (MaskedPixels(images, middle) for images in open_segmented(own.dense[name]))
    scores: dict[str, float] = {}
    for prefix, encode in (
        ("", model.extract_features),
        ("pixels_", partial(patch_pixels, size=patch)),
    ):
        bank = collect_patches(encode, learned, settings, world)
        features, labels = bank.values.to(world.device), bank.labels.to(world.device)
        probe = ProbeSettings(
            epochs=own.linear_probe.epochs, batch_size=own.linear_probe.batch_size
        )
        labelers: dict[str, Labeler] = {
            f"{prefix}knn_miou": KNearest(features, labels, own.k, own.temperature),
            f"{prefix}linear_miou": fit_linear(features, labels, probe),
        }
        if prefix:
            labelers["majority_miou"] = Majority(labels)
        scores |= score_masks(encode, labelers, scored, settings, world)
    return scores


def patch_pixels(images: Tensor, size: int) -> Tensor:
    """Return the pixels of each patch, (B, N, 3 p p), of images (B, 3, H, W)."""
    return F.unfold(images.float(), size, stride=size).transpose(1, 2)


def collect_patches(
    encode: Callable[[Tensor], Tensor], learned: MaskedPixels, settings: Settings, world: World
) -> Features:
    """Return features (n, D) and classes (n,) of labeled patches, equally many per image.

    Up to `evaluation.dense_patches` in total, so that memory does not grow with the set.
    """
    own, count, patch = settings.evaluation, len(learned.images), settings.model.patch()
    batches = own_batches(world, count, own.batch_size)
    ahead = read_ahead(learned.read, batches, own.num_workers)
    down, across = patch_grid(settings)
    kept = min(down * across, max(1, own.dense_patches // count))

    def compute(_: range) -> Features:
        ids, pixels, masks = next(ahead)
        classes = patch_classes(masks.to(world.device), patch)
        tokens = encode(pixels.to(world.device)).float()
        chosen = torch.stack([chosen_patches(int(index), down * across, kept) for index in ids])
        chosen = chosen.to(world.device)
        rows = chosen[..., None].expand(-1, -1, tokens.shape[2])
        return Features(ids, tokens.gather(1, rows).cpu(), classes.gather(1, chosen).cpu())

    gathered = gather_features(world, count, own.batch_size, compute)
    features, classes = gathered.values.flatten(0, 1), gathered.labels.flatten()
    labeled = classes != IGNORED
    return Features(torch.arange(int(labeled.sum())), features[labeled], classes[labeled])


def chosen_patches(image: int, patches: int, kept: int) -> Tensor:
    """Return which patches of an image are in the bank, the same in every evaluation."""
    order = torch.randperm(patches, generator=torch.Generator().manual_seed(image))
    return order[:kept]


def score_masks(
    encode: Callable[[Tensor], Tensor],
    labelers: dict[str, Labeler],
    scored: MaskedPixels,
    settings: Settings,
    world: World,
) -> dict[str, float]:
    """Return the mIoU of each labeler over all pixels of all images; every image counts once."""
    own, patch, grid = settings.evaluation, settings.model.patch(), patch_grid(settings)
    counts = torch.zeros(len(labelers), IGNORED, IGNORED, dtype=torch.int64, device=world.device)
    batches = own_batches(world, len(scored.images), own.batch_size)
    for _, pixels, masks in read_ahead(scored.read, batches, own.num_workers):
        truth = masks.to(world.device)
        tokens = encode(pixels.to(world.device)).float()
        for row, labeler in zip(counts, labelers.values(), strict=True):
            predicted = labeler.predict(tokens.flatten(0, 1)).view(len(tokens), -1)
            row += confusion(spread_patches(predicted, grid, patch), truth)
    totals = all_reduce_sum(counts)
    return {name: mean_iou(row) for name, row in zip(labelers, totals, strict=True)}
