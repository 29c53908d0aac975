"""Settings of images, augmentation and masks. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from overt.checks import each_within, height_width, lowest_highest, one_of, within
from overt.errors import ConfigError

# Settings of blocks, with the values of conf/data/images.yaml: kind=random has no blocks.
OF_BLOCKS = {
    "num_masks": 4,
    "aspect_ratio": [0.75, 1.5],
    "context_scale": [0.85, 1.0],
    "context": "block",
    "allow_overlap": False,
}


@dataclass
class MaskingSettings:
    # ijepa (targets may overlap, square context), multiblock (targets apart where possible),
    # hierarchical (the reference's training: nearly square targets) or random (MAE: mask_scale is
    # the fraction of masked patches, the rest is the only context; settings of blocks have no
    # effect)
    kind: str = MISSING
    # with kind=ijepa: also the quirks of the official sampler (one random number for area and
    # aspect; no block starts in the last row and column)
    ijepa_compat: bool = MISSING
    # own, or with kind=ijepa official: blocks and contexts have the distribution of the official
    # collator, which truncates the contexts of a batch to the shortest and keeps their first
    # patches
    style: str = "own"
    # with style=official: images of such a batch, the batch of one GPU in the official run
    cut_batch: int = 128
    # what has equal weight in the loss: every predicted token, or every block (official)
    weigh: str = "tokens"
    # target blocks of an image
    num_masks: int = MISSING
    # area of a target block over that of the image
    mask_scale: list[float] = MISSING
    # range of the aspect ratio of a target block: height over width with kind=ijepa, width over
    # height with other kinds
    aspect_ratio: list[float] = MISSING
    # contexts of an image, each with separate predictions
    num_context_masks: int = MISSING
    # area of the context block, before the targets are removed; no effect with kind=hierarchical,
    # which has a fixed one, and with context=rest, which has no block
    context_scale: list[float] = MISSING
    # block, or rest (all patches except targets)
    context: str = MISSING
    # minimum number of patches of a context, if necessary by showing a target
    min_keep: int = MISSING
    # maximum number of patches of a context, chosen at random; null: all
    max_keep: int | None = MISSING
    # the context may see the targets
    allow_overlap: bool = MISSING
    # predict each block separately (blocks, I-JEPA) or all together (union, H-JEPA)
    predict: str = MISSING
    # pad all batches to the same number of tokens; padding is excluded from the loss. Required by
    # CUDA graphs. auto: on a CUDA device, if padding does not affect the result
    fixed_shapes: bool | str = False

    def __post_init__(self) -> None:
        one_of("data.masking.kind", self.kind, ("ijepa", "multiblock", "hierarchical", "random"))
        one_of("data.masking.context", self.context, ("block", "rest"))
        one_of("data.masking.predict", self.predict, ("blocks", "union"))
        one_of("data.masking.style", self.style, ("own", "official"))
        fixed = str(self.fixed_shapes).lower()
        one_of("data.masking.fixed_shapes", fixed, ("auto", "true", "false"))
        self.fixed_shapes = fixed if fixed == "auto" else fixed == "true"
        one_of("data.masking.weigh", self.weigh, ("tokens", "blocks"))
        within("data.masking.cut_batch", self.cut_batch, 1)
        if self.style == "official" and (self.kind, self.context) != ("ijepa", "block"):
            raise ConfigError(
                "data.masking.style=official needs kind=ijepa and context=block, got "
                f"kind={self.kind} and context={self.context}; set style=own"
            )
        if self.style == "official" and self.max_keep is not None:
            raise ConfigError(
                f"data.masking.style=official cuts contexts by itself, but max_keep="
                f"{self.max_keep}; set max_keep=null"
            )
        lowest_highest("data.masking.mask_scale", self.mask_scale, most=1)
        lowest_highest("data.masking.context_scale", self.context_scale, most=1)
        lowest_highest("data.masking.aspect_ratio", self.aspect_ratio)
        each_within("data.masking", self, ("num_masks", "num_context_masks", "min_keep"), 1)
        if self.max_keep is not None and self.max_keep < self.min_keep:
            raise ConfigError(
                f"data.masking.max_keep={self.max_keep} is below min_keep={self.min_keep}; raise "
                "it, or set it to null"
            )
        if self.kind == "random" and (self.num_context_masks, self.max_keep) != (1, None):
            raise ConfigError(
                "data.masking.kind=random has one context, of all patches that are not masked, got "
                f"num_context_masks={self.num_context_masks} and max_keep={self.max_keep}; set "
                "num_context_masks=1 and max_keep=null"
            )
        for key, value in OF_BLOCKS.items() if self.kind == "random" else ():
            if getattr(self, key) != value:
                shown = str(value).lower() if isinstance(value, bool) else value
                raise ConfigError(
                    f"data.masking.{key}={getattr(self, key)} has no effect with kind=random, "
                    f"which masks single patches; set it back to {shown}, or choose another kind"
                )
        if self.ijepa_compat and (self.kind != "ijepa" or self.context != "block"):
            raise ConfigError("data.masking.ijepa_compat=true needs kind=ijepa and context=block")


@dataclass
class SyntheticSettings:
    # textured shapes written to root, one folder per class
    classes: int = MISSING
    # images of each class
    per_class: int = MISSING
    # pixels of a side
    size: int = MISSING
    # random seed of the images, independent of the run's
    seed: int = MISSING

    def __post_init__(self) -> None:
        each_within("data.synthetic", self, ("classes", "per_class", "size"), 1)


@dataclass
class AugmentationSettings:
    # random crop of the image; false: its center
    random_crop: bool = MISSING
    # area of the crop relative to the image
    crop_scale: list[float] = MISSING
    # bilinear or bicubic
    interpolation: str = MISSING
    # mirror images with probability 0.5
    horizontal_flip: bool = MISSING
    # strength of color jitter: brightness, contrast, saturation and hue; 0: none
    color_jitter: float = MISSING
    # strength of SimCLR's and I-JEPA's color distortion: stronger jitter with probability 0.8, and
    # grayscale with probability 0.2; 0: none
    color_distortion: float = 0.0
    # probability of a Gaussian blur of 0.1 to 2 pixels
    blur: float = 0.0
    # compute the views of a whole batch on the device; all images need one size in pixels
    device: bool = False

    def __post_init__(self) -> None:
        one_of("data.augmentation.interpolation", self.interpolation, ("bilinear", "bicubic"))
        lowest_highest("data.augmentation.crop_scale", self.crop_scale, most=1)
        each_within("data.augmentation", self, ("color_jitter", "color_distortion"), 0)
        within("data.augmentation.blur", self.blur, 0, 1)
        if self.color_jitter > 0 and self.color_distortion > 0:
            raise ConfigError(
                f"data.augmentation.color_jitter={self.color_jitter} and color_distortion="
                f"{self.color_distortion} both change colors; set one of them to 0"
            )


@dataclass
class MixedSettings:
    # a folder, pack or archive of images
    root: str = MISSING
    # samples of this set relative to those of data.root
    weight: float = 1.0

    def __post_init__(self) -> None:
        within("data.mixture.weight", self.weight, 0, above=True)


@dataclass
class DataSettings:
    # training images: a folder, a pack written by `overt data pack`, or a .npz archive
    root: str = MISSING
    # further training images, read without labels: [{root: ROOT, weight: 0.5}]; those of root have
    # weight 1, and an epoch has as many samples as all sets together
    mixture: list[MixedSettings] = field(default_factory=list)
    # evaluation images, likewise; null: the held-out fraction of root; root itself: scores of
    # images that were trained on, with a warning
    val_root: str | None = MISSING
    # with val_root null: fraction of the images of root that is held out
    held_out: float = MISSING
    # folders in root are classes, which k-NN and probes need, and those of val_root are matched by
    # name; false: images may be anywhere, and labels of packs and archives are ignored
    labeled: bool = MISSING
    # synthetic images written to root before training; null: the data exist
    synthetic: SyntheticSettings | None = MISSING
    # (height, width) in pixels
    image_size: list[int] = MISSING
    # mean of red, green and blue, from 0 to 1, for normalization
    mean: list[float] = MISSING
    # standard deviation of red, green and blue, on the same scale
    std: list[float] = MISSING
    augmentation: AugmentationSettings = MISSING
    masking: MaskingSettings = MISSING
    # images of an evaluation are resized to this multiple of image_size, then center-cropped
    margin: float = 1.14
    # sample the crop first and decode a JPEG at a half, a quarter or an eighth of its size if that
    # still has as many pixels as the view: faster for large photographs, pixels differ slightly;
    # needs augmentation.device=false and a loss with one view of an image
    reduced_decode: bool = False
    # of a classifier: fraction of the training images that it learns from, balanced over classes:
    # the same number of each, as far as they reach
    label_fraction: float = 1.0

    def __post_init__(self) -> None:
        within("data.margin", self.margin, 1)
        within("data.label_fraction", self.label_fraction, 0, 1, above=True)
        height_width("data.image_size", self.image_size)
        within("data.held_out", self.held_out, 0, 1, below=True)
        for key in ("mean", "std"):
            if len(getattr(self, key)) != 3:
                raise ConfigError(f"data.{key} takes three numbers: red, green and blue")
        for number in self.std:
            within("data.std", number, 0, above=True)
