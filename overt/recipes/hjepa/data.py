"""Images with sampled masks, and the layout of a batch for the model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from overt.data.images.decode import Shrink
from overt.data.images.files import UNLABELED
from overt.data.images.folder import Images, ReadableImages
from overt.data.images.opening import Relabeled, open_images
from overt.data.images.synthetic import write_images
from overt.data.images.transforms import (
    ColorJitter,
    EvaluationTransform,
    TrainingTransform,
    reduced,
    reduction,
)
from overt.data.images.views import view_row
from overt.data.rng import sample_rng
from overt.distributed import is_main_process, main_first
from overt.errors import DataError
from overt.nn.vit import pack_patches
from overt.progress import expendable
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data_config import DataSettings, MaskingSettings
from overt.recipes.hjepa.fixed_shapes import Spread, fill_up
from overt.recipes.hjepa.levels import Pooling, SequencePooling, grid_cells
from overt.recipes.hjepa.masks import (
    BatchRule,
    Grid,
    MaskRule,
    OfficialRule,
    RandomRule,
    hierarchical_rule,
    ijepa_rule,
    multiblock_rule,
    patches_of,
)
from overt.recipes.hjepa.mixing import Pull
from overt.recipes.hjepa.model import Layout
from overt.recipes.hjepa.model_config import ModelSettings
from overt.recipes.hjepa.predictor import pack_predictions

Places = list[np.ndarray]  # patch numbers, a list of lists

IMAGES_TRIED = 512  # whose masks tell how large a batch is

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    image: Tensor  # (3, H, W) uint8
    second: Tensor | None  # another view of it
    contexts: Places  # patch numbers of each context
    targets: Places  # and of each set that is predicted
    views: Tensor | None = None  # (V, 15) where the device makes the views of `image`


@dataclass(frozen=True)
class Batch:
    images: Tensor  # (B, 3, H, W) uint8
    second: Tensor | None
    layout: Layout
    views: Tensor | None = None  # (B, V, 15) where `images` are not transformed yet
    is_padding: bool = False  # only keeps the processes in step
    pull: Pull | None = None  # of a term that mixes all micro-batches


class Masks:
    """Samples what is visible of an image and what is predicted."""

    def __init__(self, settings: Settings) -> None:
        self.rule = mask_rule(settings)
        self.predicts_union = settings.data.masking.predict == "union"

    def draw(self, rng: np.random.Generator) -> tuple[Places, Places]:
        """Patch numbers of each context, and of each set that is predicted."""
        if isinstance(self.rule, RandomRule):
            return self.rule.draw_sets(rng)
        contexts, blocks = self.rule.draw(rng)
        sets = [blocks] if self.predicts_union else [[block] for block in blocks]
        return contexts, [patches_of(target_set, self.rule.grid) for target_set in sets]


class MaskedImages:
    """Training images, transformed, with contexts and targets from the sample's own generator."""

    def __init__(self, images: Images, settings: Settings) -> None:
        self.images = images
        self.transform = training_transform(settings.data)
        self.masks = Masks(settings)
        self.on_device = settings.data.augmentation.device
        self.has_two_views = settings.loss.extra == "contrastive"
        self.reduces = settings.data.reduced_decode and not (self.on_device or self.has_two_views)

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        if self.reduces:
            image, _ = read_view(self.images, index, self.transform, rng)
            return self.masked(image, None, rng)
        pixels, _ = self.images.read(index)
        if self.on_device:
            views = draw_views(self.transform, pixels, 1 + self.has_two_views, rng)
            return Sample(pixels, None, *self.masks.draw(rng), views)
        image = self.transform(pixels, rng)
        second = self.transform(pixels, rng) if self.has_two_views else None
        return self.masked(image, second, rng)

    def masked(self, image: Tensor, second: Tensor | None, rng: np.random.Generator) -> Sample:
        """Return an image with sampled contexts and targets."""
        return Sample(image, second, *self.masks.draw(rng))


class HeldOutImages(MaskedImages):
    """Images of an evaluation: center crops, with fixed masks."""

    images: ReadableImages

    def __init__(self, images: ReadableImages, settings: Settings) -> None:
        super().__init__(images, settings)
        height, width = settings.data.image_size
        self.middle = EvaluationTransform((height, width), settings.data.margin)
        low, high = settings.data.augmentation.crop_scale
        self.crop = TrainingTransform((height, width), scale=(low, high), flip=0.5)

    def try_sample(self, index: int) -> Sample | None:
        """Return the image with its masks, or None if it cannot be read."""
        sample = self.try_read(index)
        return None if sample is None else self.masked(sample[0], None, sample_rng(0, 0, index))

    def try_read(self, index: int, view: int | None = None) -> tuple[Tensor, int] | None:
        """Return the resized pixels (3, H, W) uint8 and the label, or None.

        The center of the image, or a random crop that is fixed for the index of a view.
        """
        sample = self.images.try_read(index)
        if sample is None:
            return None
        pixels, label = sample
        if view is None:
            return self.middle(pixels), label
        return self.crop(pixels, sample_rng(0, 1 + view, index)), label


class Part:
    """Some images of a set."""

    def __init__(self, images: Images, chosen: np.ndarray) -> None:
        self.images, self.chosen = images, chosen
        self.labels, self.classes = images.labels[chosen], images.classes

    @property
    def names(self) -> Sequence[str]:
        return [self.images.names[int(index)] for index in self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        return self.images.read(int(self.chosen[index]), shrink)


def numbered_alike(held_out: Images, training: Images) -> Images:
    """Return the held-out images with class indices of the training set, matched by name.

    The classes of an archive have numbers as names.
    """
    if not (training.classes and held_out.classes):
        return held_out
    learned = {training.classes[label] for label in np.unique(training.labels)}
    class_names = [held_out.classes[label] for label in np.unique(held_out.labels)]
    unknown = [name for name in class_names if name not in learned]
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise DataError(
            f"data.val_root has {len(unknown)} class{'' if len(unknown) == 1 else 'es'} ({shown}) "
            f"of which data.root has no image, so that no k-NN or probe could recognize any. "
            "Classes are the same where their folders have the same name, in archives where they "
            "have the same number. Give both sets the same classes, or set data.labeled=false."
        )
    if held_out.classes == training.classes:
        return held_out
    numbers = {name: number for number, name in enumerate(training.classes)}
    table = np.array([numbers.get(name, UNLABELED) for name in held_out.classes])
    return Relabeled(held_out, table[held_out.labels], training.classes)


def make_missing_data(settings: DataSettings) -> None:
    """Write the synthetic images described by `data.synthetic`, unless they exist.

    Every rank has to call this.
    """
    synthetic = settings.synthetic
    if synthetic is None:
        return

    @expendable()
    def make() -> None:
        if Path(settings.root).exists():
            return
        try:
            write_images(settings.root, **dataclasses.asdict(synthetic))
        except DataError:
            if not Path(settings.root).exists():
                raise
            # Another run that writes the same images was faster: its images are used.

    main_first(make)


def open_sets(settings: DataSettings) -> tuple[ReadableImages, ReadableImages]:
    """Return training and evaluation images, with the same class indices."""
    images = open_images(settings.root, settings.labeled)
    if settings.val_root is not None and _is_same_path(settings.val_root, settings.root):
        if is_main_process():
            logger.warning(
                "data.val_root=%s is data.root: every image is scored against itself, so that "
                "knn_top1 is near 1 whatever was learned, and nothing is held out; set "
                "data.val_root=null for a fraction data.held_out, or name another set",
                settings.val_root,
            )
        both = ReadableImages(images)  # what cannot be read is known to both
        return both, both
    if settings.val_root is not None:
        held_out_images = numbered_alike(open_images(settings.val_root, settings.labeled), images)
        return ReadableImages(images), ReadableImages(held_out_images)
    order = np.random.default_rng(0).permutation(len(images))
    count = round(settings.held_out * len(images))
    training, held_out = (Part(images, np.sort(part)) for part in (order[count:], order[:count]))
    return ReadableImages(training), ReadableImages(held_out)


def _is_same_path(first: str, second: str) -> bool:
    """Return whether both name one folder or file, however they are written."""
    return Path(first).resolve() == Path(second).resolve()


def training_transform(settings: DataSettings) -> TrainingTransform:
    """Return crop, flip and color transforms of the section `augmentation`."""
    height, width = settings.image_size
    chosen = settings.augmentation
    low, high = chosen.crop_scale
    distorts = chosen.color_distortion > 0
    full_crop = {"scale": (1.0, 1.0), "ratio": (width / height, width / height)}
    crop = {"scale": (low, high)} if chosen.random_crop else full_crop
    return TrainingTransform(
        (height, width),
        interpolation="bicubic" if chosen.interpolation == "bicubic" else "bilinear",
        flip=0.5 if chosen.horizontal_flip else 0.0,
        jitter=ColorJitter.distortion(chosen.color_distortion)
        if distorts
        else ColorJitter.of_strength(chosen.color_jitter),
        jitter_probability=0.8 if distorts else 1.0,
        gray=0.2 if distorts else 0.0,
        blur=chosen.blur,
        **crop,
    )


def read_view(
    images: Images, index: int, transform: TrainingTransform, rng: np.random.Generator
) -> tuple[Tensor, int]:
    """Return a view (3, *size) and the label of an image, decoding no more than the view needs.

    The view is sampled for the full size before decoding, so it is the same as without.
    """
    full: list[tuple[int, int]] = []  # of the image decoded last: those before it are unreadable

    def shrink(height: int, width: int) -> int:
        full[:] = [(height, width)]
        return reduction(transform.draw(height, width, deepcopy(rng)).crop, transform.size)

    pixels, label = images.read(index, shrink)
    height, width = full[0] if full else (pixels.shape[1], pixels.shape[2])
    view = transform.draw(height, width, rng)
    if height > pixels.shape[1] or width > pixels.shape[2]:
        view = view._replace(crop=reduced(view.crop, (height, width), pixels.shape[1:]))
    return transform.apply(pixels, view), label


def draw_views(
    transform: TrainingTransform, pixels: Tensor, count: int, rng: np.random.Generator
) -> Tensor:
    """Sample view parameters (count, 15) of an image (3, H, W) for the device."""
    drawn = [transform.draw(pixels.shape[1], pixels.shape[2], rng) for _ in range(count)]
    # np.stack takes eight times as long.
    return torch.from_numpy(np.array([view_row(view) for view in drawn]))


def stack_images(images: list[Tensor]) -> Tensor:
    """Stack images (3, H, W), which need one size if the device transforms them."""
    sizes = {tuple(image.shape[1:]) for image in images}
    if len(sizes) > 1:
        shown = " and ".join(f"{height} x {width}" for height, width in sorted(sizes)[:2])
        raise DataError(
            f"data.augmentation.device=true needs images of one size, but some have {shown} "
            "pixels; set it to false, or crop them to one size (`overt data pack --side` keeps "
            "their proportions)"
        )
    return torch.stack(images)


def patch_grid(settings: Settings) -> Grid:
    """Patches of an image (down, across)."""
    height, width = settings.data.image_size
    size = settings.model.patch()
    return height // size, width // size


def mask_rule(settings: Settings) -> MaskRule | OfficialRule | RandomRule:
    """Return the mask sampler of the section `masking`."""
    masking, grid = settings.data.masking, patch_grid(settings)
    scale, aspect, context = (
        (pair[0], pair[1])
        for pair in (masking.mask_scale, masking.aspect_ratio, masking.context_scale)
    )
    count = masking.num_masks
    if masking.ijepa_compat or masking.style == "official":
        rule: type[OfficialRule] = OfficialRule
        options: dict[str, int] = {}
        if masking.style == "official":
            rule, options = BatchRule, {"batch": masking.cut_batch}
        return rule(
            grid,
            scale,
            aspect,
            context,
            count,
            masking.num_context_masks,
            masking.min_keep,
            masking.allow_overlap,
            masking.max_keep,
            **options,
        )
    match masking.kind:
        case "random":
            return RandomRule(grid, scale)
        case "ijepa":
            blocks = ijepa_rule(grid, scale, aspect, context, count)
        case "multiblock":
            blocks = multiblock_rule(grid, scale, aspect, context, count)
        case _:
            levels = settings.model.num_hierarchies
            blocks = hierarchical_rule(grid, 0, levels, scale, aspect, count)
    return _with_context(blocks, masking)


def _with_context(rule: MaskRule, masking: MaskingSettings) -> MaskRule:
    return dataclasses.replace(
        rule,
        num_contexts=masking.num_context_masks,
        context_is_rest=masking.context == "rest",
        min_keep=masking.min_keep,
        max_keep=masking.max_keep,
        allow_overlap=masking.allow_overlap,
    )


class Collate:
    """Collate samples: images stacked, masks packed, padded to one shape on request."""

    def __init__(self, settings: Settings) -> None:
        self.grid, self.model = patch_grid(settings), settings.model
        self.by_block = settings.data.masking.weigh == "blocks"
        self.spread: Spread | None = None
        if settings.data.masking.fixed_shapes:
            masks = Masks(settings)
            drawn = [masks.draw(sample_rng(0, 0, index)) for index in range(IMAGES_TRIED)]
            self.spread = Spread.over(
                [lay_out([image_masks], self.grid, self.model) for image_masks in drawn]
            )

    def __call__(self, samples: list[Sample]) -> Batch:
        second = [sample.second for sample in samples if sample.second is not None]
        masks = [(sample.contexts, sample.targets) for sample in samples]
        layout = lay_out(masks, self.grid, self.model, self.by_block)
        if self.spread is not None:
            layout = fill_up(layout, self.spread.of_batch(len(samples)))
        views = [sample.views for sample in samples if sample.views is not None]
        return Batch(
            images=stack_images([sample.image for sample in samples]),
            second=torch.stack(second) if second else None,
            layout=layout,
            views=torch.stack(views) if views else None,
        )


def lay_out(
    masks: list[tuple[Places, Places]], grid: Grid, model: ModelSettings, by_block: bool = False
) -> Layout:
    """Return contexts and targets of each image as index tensors for the model.

    `by_block`: every set of targets has the same weight in the loss, whatever its size.
    """
    contexts, targets = (list(side) for side in zip(*masks, strict=True))
    batch, patches = len(contexts), grid[0] * grid[1]
    context_patches = [image[number] for number in range(len(contexts[0])) for image in contexts]
    hidden = None
    if model.hidden_tokens == "zero":
        hidden = torch.ones(batch, patches, dtype=torch.bool)
        for number, patch_indices in enumerate(context_patches):
            hidden[number, torch.from_numpy(patch_indices)] = False
        context_patches = [np.arange(patches)] * batch  # all tokens stay, so the predictor sees all
    sets = [[image[number] for image in targets] for number in range(len(targets[0]))]
    counts = np.array([len(patch_indices) for target_set in sets for patch_indices in target_set])
    if model.pooling == "sequence":
        # At least one window of the last level, if only of padding, which is not valid.
        longest = max(counts.max(), 2 ** (model.num_hierarchies - 1))
        sets = [
            [
                np.pad(patch_indices, (0, longest - len(patch_indices)))
                for patch_indices in target_set
            ]
            for target_set in sets
        ]
    prediction = pack_predictions(
        [len(patch_indices) for patch_indices in context_patches], sets, patches
    )
    # A set is predicted once from every context.
    repeats = len(context_patches) // batch
    counts = np.repeat(counts.reshape(len(sets), 1, batch), repeats, axis=1).ravel()
    pooling: Pooling
    if model.pooling == "sequence":
        pooling = SequencePooling(torch.from_numpy(np.arange(longest) < counts[:, None]))
    else:
        sequences = np.repeat(np.arange(len(counts)), counts)
        patch_indices = prediction.positions.numpy()
        pooling = grid_cells(patch_indices, sequences, grid, model.num_hierarchies, by_block)
    images = list(range(batch)) * repeats
    return Layout(
        visible=pack_patches(context_patches, images, batch, patches, model.class_token),
        hidden=hidden,
        prediction=prediction,
        pooling=pooling,
    )
