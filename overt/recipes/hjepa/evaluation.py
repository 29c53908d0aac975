"""What a frozen encoder is worth: held-out loss, spread of features, k-NN, probes, exports.

Every process takes its share of the images, each image counts once, and images that cannot be read
are skipped, counted and named.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.distributed import World, all_reduce_sum
from overt.evaluation import own_batches, read_ahead
from overt.metrics.collapse import reference_metrics, spectrum_scores
from overt.metrics.features import Features, export_features, gather_features, knn_accuracies
from overt.metrics.probe_stream import stream_attentive_accuracy
from overt.metrics.probe_sweep import linear_sweep_accuracy
from overt.metrics.probes import ProbeSettings, attentive_probe_accuracy, linear_probe_accuracy
from overt.ops.float64 import sum_dtype
from overt.recipes.hjepa.config import EvaluationSettings, Settings
from overt.recipes.hjepa.data import Batch, HeldOutImages, Sample
from overt.recipes.hjepa.encoder import FeatureModel
from overt.recipes.hjepa.levels import to_device, valid_counts
from overt.recipes.hjepa.model import HJEPA, Output

Collate = Callable[[list[Sample]], Batch]
LevelLosses = Callable[[Output, Tensor], list[Tensor]]

log = logging.getLogger(__name__)


def spread_over_classes(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Places of `count` images, of all classes alike as far as these reach; always the same ones.

    Sets are listed class by class, so that the first images of one say nothing of the whole. Where
    there are more classes than images, two sets with the same classes get the same of them: drawn
    from all images, those of a bank and those to be recognized would hardly meet.
    """
    if count >= len(labels):
        return np.arange(len(labels))
    shuffled = np.random.default_rng(0).permutation(len(labels))
    by_class = shuffled[labels[shuffled].argsort(kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    # The n-th image of every class has its turn before the next of any.
    turns = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)
    # A distinct number for every class from -1 on, whatever other classes there are.
    precedence = np.random.default_rng(1).random(int(labels.max()) + 2)[labels[by_class] + 1]
    return np.sort(by_class[np.lexsort((precedence, turns))[:count]])


def images_used(images: HeldOutImages, most: int | None) -> NDArray[np.int64]:
    """Places of the images of a set that are used, `most` of them or all."""
    labels = images.images.labels
    return spread_over_classes(labels, len(labels) if most is None else most)


def collect_features(
    compute: Callable[[Tensor], Tensor],
    images: HeldOutImages,
    settings: EvaluationSettings,
    world: World,
    view: int | None = None,
) -> Features:
    """`compute` of uint8 images (B, 3, H, W), of all processes' images together.

    With `view` of a random crop of every image, another for every number.
    """
    used = images_used(images, settings.max_samples)
    batches = own_batches(world, len(used), settings.batch_size)
    read = partial(read_images, images, used, view=view)
    ahead = read_ahead(read, batches, settings.num_workers)

    def batch(positions: range) -> Features:
        ids, pixels, labels = next(ahead)
        if len(ids) == 0:
            return Features(ids, pixels, labels)
        return Features(ids, compute(pixels.to(world.device)).cpu(), labels)

    gathered = gather_features(world, len(used), settings.batch_size, batch)
    return gathered._replace(ids=torch.from_numpy(used)[gathered.ids])


def read_images(
    images: HeldOutImages,
    used: NDArray[np.int64],
    positions: Iterable[int],
    view: int | None = None,
) -> Features:
    """Positions, pixels (n, 3, H, W) uint8 and labels of the images that can be read."""
    read = [(position, images.try_read(int(used[position]), view)) for position in positions]
    readable = [(position, *image) for position, image in read if image is not None]
    if not readable:
        return Features(torch.empty(0), torch.empty(0), torch.empty(0))
    ids, pixels, labels = zip(*readable, strict=True)
    return Features(torch.tensor(ids), torch.stack(pixels), torch.tensor(labels))


def scored_features(model: FeatureModel, settings: EvaluationSettings, images: Tensor) -> Tensor:
    """Features of each image as the settings ask for them, (B, D): of blocks, or of a level."""
    if settings.level is None:
        return pooled_features(model, settings.layers, images)
    return model.extract_features(images, settings.level).float().mean(1)


def pooled_features(model: FeatureModel, layers: int, images: Tensor) -> Tensor:
    """Mean features of each image, (B, layers D): of the last blocks, one behind the other."""
    return torch.cat(
        [tokens.float().mean(1) for tokens in model.last_features(images, layers)], dim=1
    )


def token_features(model: FeatureModel, images: Tensor) -> Tensor:
    """The features of all patches, (B, N, D) half precision."""
    return model.extract_features(images).half()


def score_features(
    model: FeatureModel,
    training: HeldOutImages,
    held_out: HeldOutImages,
    settings: Settings,
    world: World,
) -> dict[str, float]:
    """k-NN and probes on frozen features; written to files where the settings ask for it.

    `feature_score` ranks checkpoints: k-NN where there are labels, else RankMe over the width.
    """
    evaluation = settings.evaluation
    pooled = partial(scored_features, model, evaluation)
    labeled = bool(training.images.classes and held_out.images.classes)
    test = collect_features(pooled, held_out, evaluation, world)
    scores = spectrum_scores(test.values.to(world.device))
    scores["feature_score"] = scores["rankme"] / test.values.shape[1]
    if not labeled and evaluation.export is None:
        return scores
    bank = collect_features(pooled, training, evaluation, world)
    if evaluation.export is not None and world.is_main:
        for name, images, features in (("training", training, bank), ("held_out", held_out, test)):
            names = [images.images.names[index] for index in features.ids.tolist()]
            path = Path(evaluation.export) / f"{name}.safetensors"
            export_features(path, features.values, features.labels, names)
    if not labeled:
        return scores
    sample_count = min(len(training), evaluation.max_samples or len(training))
    device = world.device  # that of the model, so that a GPU compares and learns as well
    pairs = (
        bank.values.to(device),
        bank.labels.to(device),
        test.values.to(device),
        test.labels.to(device),
    )
    if world.is_main:
        warn_of_few_neighbors(evaluation.k, tuple(evaluation.further_k), len(bank.values))
    counts = {min(k, len(bank.values)) for k in (evaluation.k, *evaluation.further_k)}
    accuracies = knn_accuracies(*pairs, sorted(counts), evaluation.temperature, world)
    nearest = accuracies[min(evaluation.k, len(bank.values))]
    scores |= {"knn_top1": nearest, "feature_score": nearest}
    scores["unreadable_training_images"] = float(sample_count - len(bank.ids))
    for k in evaluation.further_k:
        if k <= len(bank.values):  # its name says k, so it is not scored with fewer
            scores[f"knn_top1_k{k}"] = accuracies[k]
    linear, attentive = evaluation.linear_probe, evaluation.attentive_probe
    if linear.enabled and linear.sweep:
        chosen = ProbeSettings(epochs=linear.epochs, batch_size=linear.batch_size)
        views = [
            collect_features(pooled, training, evaluation, world, view).values.to(device)
            for view in range(linear.views)
        ]
        scores |= sweep_scores(pairs, chosen, linear.label_fractions, views)
    elif linear.enabled:
        chosen = ProbeSettings(lr=linear.lr, epochs=linear.epochs, batch_size=linear.batch_size)
        accuracy = linear_probe_accuracy(*pairs, settings=chosen)
        scores |= {f"linear_{name}": value for name, value in accuracy.items()}
    if attentive.enabled and attentive.stream:
        chosen = ProbeSettings("adamw", attentive.lr, 0.01, attentive.epochs, attentive.batch_size)
        sources = (
            partial(stream_tokens, model, images, evaluation, world)
            for images in (training, held_out)
        )
        train, test_tokens = sources
        counts_used = [
            len(images_used(images, evaluation.max_samples)) for images in (training, held_out)
        ]
        accuracy = stream_attentive_accuracy(
            *(train, counts_used[0], test_tokens, counts_used[1]),
            width=settings.model.sizes().width,
            classes=len(training.images.classes),
            heads=settings.model.sizes().heads,
            world=world,
            settings=chosen,
        )
        scores |= {f"attentive_{name}": value for name, value in accuracy.items()}
    elif attentive.enabled:
        chosen = ProbeSettings("adamw", attentive.lr, 0.01, attentive.epochs, attentive.batch_size)
        tokens = partial(token_features, model)
        bank, test = (
            collect_features(tokens, images, evaluation, world) for images in (training, held_out)
        )
        accuracy = attentive_probe_accuracy(
            *(bank.values, bank.labels, test.values, test.labels),
            heads=settings.model.sizes().heads,
            settings=chosen,
            device=device,
        )
        scores |= {f"attentive_{name}": value for name, value in accuracy.items()}
    return scores


@cache  # once, not in every evaluation
def warn_of_few_neighbors(k: int, further_k: tuple[int, ...], images: int) -> None:
    """Warn if k-NN is asked for more neighbors than there are training images.

    Not an error: small sets are common in trials of a recipe whose defaults are for large ones.
    """
    if k > images:
        log.warning(
            "evaluation.k=%d, but k-NN has %d training images: knn_top1 is that of k=%d; set "
            "evaluation.k to %d or less",
            *(k, images, images, images),
        )
    skipped = [str(other) for other in further_k if other > images]
    if skipped:
        log.warning(
            "evaluation.further_k has %s, but k-NN has %d training images: knn_top1_k%s is not "
            "scored; remove it from evaluation.further_k, or raise evaluation.max_samples",
            *(", ".join(skipped), images, ", knn_top1_k".join(skipped)),
        )


def stream_tokens(
    model: FeatureModel,
    images: HeldOutImages,
    settings: EvaluationSettings,
    world: World,
    batches: Sequence[NDArray[np.int64]],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens (n, N, D) and labels of batches of images, computed as they are asked for."""
    used = images_used(images, settings.max_samples)
    read = partial(read_images, images, used)
    for _, pixels, labels in read_ahead(read, batches, settings.num_workers):
        if len(labels):
            # Not around the yield: the mode would hold for whoever asks for the tokens.
            with torch.no_grad():
                pixels = token_features(model, pixels.to(world.device))
        yield pixels, labels


def sweep_scores(
    pairs: tuple[Tensor, Tensor, Tensor, Tensor],  # features and labels to learn, and to recognize
    settings: ProbeSettings,
    label_fractions: Sequence[float],
    views: Sequence[Tensor] = (),  # further features of the samples to learn
) -> dict[str, float]:
    """`linear_top1` with all labels, and `linear_top1_0.01` and so on with fewer."""
    bank, labels, queries, truth = pairs
    learned = torch.stack([bank, *views])  # (views, n, D)

    def score(chosen: Tensor | slice) -> float:
        return linear_sweep_accuracy(
            learned[:, chosen].flatten(0, 1),
            labels[chosen].repeat(len(learned)),
            queries,
            truth,
            settings,
            views=len(learned),
        )["top1"]

    scores = {"linear_top1": score(slice(None))}
    for fraction in label_fractions:
        # One of each class at least, and two to learn from and to choose by.
        known_labels = labels.cpu().numpy()
        count = max(2, len(np.unique(known_labels)), round(fraction * len(known_labels)))
        chosen = torch.from_numpy(spread_over_classes(known_labels, count)).to(bank.device)
        scores[f"linear_top1_{fraction:.3g}"] = score(chosen)
    return scores


def held_out_loss(
    model: HJEPA,
    images: HeldOutImages,
    settings: Settings,
    world: World,
    collate: Collate,
    level_losses: LevelLosses,
) -> dict[str, float]:
    """The loss with masks that are the same every time, and how many images could not be read.

    A level without valid regions has no score: its loss of 0 would be the best there is.
    """
    device, levels = world.device, settings.model.num_hierarchies
    size, used = (
        settings.evaluation.batch_size,
        images_used(images, settings.evaluation.max_samples),
    )
    batches = math.ceil(len(used) / size)
    # A row for each batch, filled by one rank: the sum over ranks then rounds nothing, and the sum
    # over batches is the same for any world size.
    sums = torch.zeros(batches, 2, levels, dtype=sum_dtype(device), device=device)
    skipped = torch.zeros((), dtype=sum_dtype(device), device=device)
    ones = torch.ones(levels, device=device)
    own = own_batches(world, len(used), size)
    read = partial(read_masked, images, used)
    ahead = read_ahead(read, own, settings.evaluation.num_workers)
    for indices, samples in zip(own, ahead, strict=True):
        skipped += len(indices) - len(samples)
        if not samples:
            continue
        batch = collate(samples)
        layout = to_device(batch.layout, device)
        output = model(batch.images.to(device), layout)
        row = sums[indices.start // size]
        row[0] = torch.stack(level_losses(output, ones))
        row[1] = valid_counts(layout.pooling, levels)
    totals, counts = all_reduce_sum(sums).sum(dim=0).tolist()
    means = {level: totals[level] / counts[level] for level in range(levels) if counts[level]}
    if means and world.rank == 0:
        warn_of_empty_levels(tuple(level for level in range(levels) if level not in means))
    weights = settings.loss.hierarchy_weights
    weighted = sum(mean * weights[level] for level, mean in means.items()) if means else math.nan
    by_level = {f"val_loss_h{level}": mean for level, mean in means.items()}
    unreadable = float(all_reduce_sum(skipped))
    return {"val_loss": weighted} | by_level | {"unreadable_images": unreadable}


@cache  # once, not in every evaluation
def warn_of_empty_levels(levels: tuple[int, ...]) -> None:
    """Warn of levels without a single region in the loss; runs that have some may go on."""
    if levels:
        log.warning(
            "level %s of the hierarchy has no region of which the masks hide more than half, so "
            "that nothing is learned there and it has no val_loss_h: use a lower "
            "model.num_hierarchies, data.masking.predict=union or a larger data.masking.mask_scale",
            " and ".join(map(str, levels)),
        )


def read_masked(
    images: HeldOutImages, used: NDArray[np.int64], positions: Iterable[int]
) -> list[Sample]:
    """Return the images that can be read, with their masks."""
    samples = (images.try_sample(int(used[position])) for position in positions)
    return [sample for sample in samples if sample is not None]


def spread_of_features(
    model: FeatureModel, images: HeldOutImages, settings: EvaluationSettings, device: torch.device
) -> dict[str, float]:
    """The reference's collapse metrics, on a batch of held-out images in full."""
    most = min(settings.batch_size, settings.max_samples or settings.batch_size)
    chosen = images_used(images, most).tolist()
    pictures = [sample[0] for sample in map(images.try_read, chosen) if sample is not None]
    if not pictures:
        return {}
    pixels = torch.stack(pictures).to(device)
    context, target = (model.extract_features(pixels, 0, use) for use in (False, True))
    return reference_metrics(context, target)
