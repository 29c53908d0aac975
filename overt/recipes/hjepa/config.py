"""Settings of the H-JEPA recipes: names, types and refusals; the values live in the YAML files.

Names follow the H-JEPA project; I-JEPA (arXiv:2301.08243) is a choice of values. This file does
not import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from omegaconf import MISSING

from overt.checks import each_within, height_width, lowest_highest, one_of, within
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

# The distance that a type of loss uses (None: jepa_loss_type), and what it adds to it.
LOSS_TYPES: dict[str, tuple[str | None, str | None]] = {
    "mse": ("mse", None),
    "smoothl1": ("smoothl1", None),
    "huber": ("huber", None),
    "jepa": (None, None),
    "hjepa": (None, None),
    "combined": (None, "vicreg"),
    "hierarchical_combined": (None, "vicreg"),
    "vicreg": ("mse", "vicreg"),
    "hjepa_sigreg": (None, "sigreg"),
    "sigreg_combined": (None, "sigreg"),
    "sigreg": ("mse", "sigreg"),
    "cjepa": (None, "contrastive"),
    "contrastive_jepa": (None, "contrastive"),
}


@dataclass
class PredictorSettings:
    # narrow (I-JEPA's, with a separate position table) or reference (H-JEPA's, which takes the
    # encoder's width and table)
    kind: str = MISSING
    # features of a token in the narrow predictor; null: those of the encoder
    width: int | None = MISSING
    depth: int = MISSING
    num_heads: int = MISSING
    mlp_ratio: float = MISSING

    def __post_init__(self) -> None:
        each_within("model.predictor", self, ("width", "depth", "num_heads"), 1)
        within("model.predictor.mlp_ratio", self.mlp_ratio, 0, above=True)


@dataclass
class EmaSettings:
    # share of the target encoder that stays in each update, at the start and at the end of training
    momentum: float = MISSING
    momentum_end: float = MISSING
    # epochs before it begins to rise
    momentum_warmup_epochs: float = MISSING
    # above 1 the rise is longer than training and stops short of the end (I-JEPA: ipe_scale)
    stretch: float = MISSING

    def __post_init__(self) -> None:
        each_within("model.ema", self, ("momentum", "momentum_end"), 0, 1)
        within("model.ema.momentum_warmup_epochs", self.momentum_warmup_epochs, 0)
        within("model.ema.stretch", self.stretch, 0, above=True)


@dataclass
class RopeSettings:
    # turn queries and keys by row and column of their patch, besides the position table
    use_rope: bool = MISSING
    theta: float = MISSING

    def __post_init__(self) -> None:
        within("model.rope.theta", self.theta, 0, above=True)


@dataclass
class FpnSettings:
    # mix the levels from coarse to fine, as a feature pyramid does
    use_fpn: bool = MISSING
    # features of a token in the pyramid; null: those of the encoder
    feature_dim: int | None = MISSING
    # add or concat: how a level takes in the one above
    fusion_method: str = MISSING


@dataclass
class LayerScaleSettings:
    # learned factors of the residual branches
    use_layerscale: bool = MISSING
    init_value: float = MISSING


@dataclass
class HeadSettings:
    # of SimCLR: features between its two layers, and of the result; of a classifier: width is the
    # number of classes. Other recipes have no head
    hidden: int = 2048
    width: int = 128

    def __post_init__(self) -> None:
        each_within("model.head", self, ("hidden", "width"), 1)


@dataclass
class ModelSettings:
    # vit_{tiny,small,base,large,huge,giant}_patch{pixels}_{image size}, or custom: then the four
    # sizes below say what is built
    encoder_type: str = MISSING
    # features of a token
    embed_dim: int = MISSING
    # blocks, attention heads and pixels of a patch's side; null: as encoder_type says
    depth: int | None = MISSING
    num_heads: int | None = MISSING
    patch_size: int | None = MISSING
    # a token besides those of the patches
    class_token: bool = MISSING
    # positions of the patches: learned, or sincos (fixed)
    positions: str = MISSING
    # what becomes of hidden patches: drop (they never enter the encoder) or zero (the reference)
    hidden_tokens: str = MISSING
    # weights at the start: normal (deviation 0.02) or fan_in (number of inputs ** -0.5; narrow
    # models need it)
    initialization: str = MISSING
    # probability of leaving out a residual branch in the last block; rises from 0 in the first
    drop_path_rate: float = MISSING
    num_hierarchies: int = MISSING
    # regions of the levels: grid (squares of patches) or sequence (neighbors in the list of hidden
    # patches, the reference)
    pooling: str = MISSING
    # a linear layer per level: none, predictions (targets stay as they are) or shared (the
    # reference: predictions and targets, which the layer itself can make alike)
    projection: str = MISSING
    # after this layer: layernorm, batchnorm (over a process's micro-batch) or none
    projection_norm: str = MISSING
    # take mean and scale off each target token (I-JEPA)
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
        for key, whole, part in (
            ("model.embed_dim", self.embed_dim, sizes.heads),
            ("model.predictor.width", width, self.predictor.num_heads),
        ):
            if whole % part:
                raise ConfigError(f"{key}={whole} is not a multiple of its {part} attention heads")
            if whole % 4:
                raise ConfigError(f"{key}={whole} is not a multiple of 4: positions need that")
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
        """The sizes of the encoder, from its name or from the settings."""
        own = (self.depth, self.num_heads, self.patch_size)
        if self.encoder_type == CUSTOM:
            if None in own:
                raise ConfigError(
                    "model.encoder_type=custom needs model.depth, model.num_heads and "
                    "model.patch_size"
                )
            assert self.depth is not None
            assert self.num_heads is not None
            return EncoderSizes(self.embed_dim, self.depth, self.num_heads)
        if own != (None, None, None):
            raise ConfigError(
                f"model.encoder_type={self.encoder_type} fixes the sizes; leave model.depth, "
                "model.num_heads and model.patch_size null, or set model.encoder_type=custom"
            )
        return ENCODERS[self._parts()[0]]

    def patch(self) -> int:
        """Pixels of a patch's side."""
        return self.patch_size if self.patch_size is not None else int(self._parts()[1])

    def _parts(self) -> tuple[str, str]:
        match = re.fullmatch(r"vit_([a-z]+)_patch(\d+)_(\d+)", self.encoder_type)
        if match is None or match[1] not in ENCODERS:
            known = [f"vit_{name}_patch16_224" for name in ENCODERS]
            raise ConfigError(
                f"model.encoder_type={self.encoder_type}{nearest(self.encoder_type, known)}; "
                f"allowed: custom, {', '.join(known)} and other patch sizes of these"
            )
        return match[1], match[2]


@dataclass
class MaskingSettings:
    # ijepa (targets may overlap, square context), multiblock (targets apart where possible),
    # hierarchical (the reference's training: nearly square targets) or random (MAE: mask_scale says
    # which fraction of all patches is hidden, the rest is the context)
    kind: str = MISSING
    # with kind=ijepa: the official sampler's habits too (one draw for area and aspect; the last row
    # and column never start a block)
    ijepa_compat: bool = MISSING
    # own, or with kind=ijepa official: blocks and contexts have the distribution of the official
    # collator, which cuts the contexts of a batch to the shortest and keeps their first patches
    style: str = "own"
    # with style=official: images of such a batch, those of one GPU there
    cut_batch: int = 128
    # what counts alike in the loss: every predicted token, or every block (official)
    weigh: str = "tokens"
    # target blocks of an image
    num_masks: int = MISSING
    # area of a target block over that of the image
    mask_scale: list[float] = MISSING
    aspect_ratio: list[float] = MISSING
    # contexts of an image, each with separate predictions
    num_context_masks: int = MISSING
    # area of the context block, before the targets are taken off; without effect with
    # kind=hierarchical, which has a fixed one, and with context=rest, which has no block
    context_scale: list[float] = MISSING
    # block, or rest (all patches but targets)
    context: str = MISSING
    # patches that a context keeps at least, else a target may be seen
    min_keep: int = MISSING
    # patches that a context keeps at most, chosen at random; null: all
    max_keep: int | None = MISSING
    # the context may see the targets
    allow_overlap: bool = MISSING
    # predict each block by itself (blocks, I-JEPA) or all together (union, H-JEPA)
    predict: str = MISSING
    # fill all batches up to the same number of tokens, which count nowhere: a CUDA graph needs it
    fixed_shapes: bool = False

    def __post_init__(self) -> None:
        one_of("data.masking.kind", self.kind, ("ijepa", "multiblock", "hierarchical", "random"))
        one_of("data.masking.context", self.context, ("block", "rest"))
        one_of("data.masking.predict", self.predict, ("blocks", "union"))
        one_of("data.masking.style", self.style, ("own", "official"))
        one_of("data.masking.weigh", self.weigh, ("tokens", "blocks"))
        within("data.masking.cut_batch", self.cut_batch, 1)
        if self.style == "official" and (self.kind, self.context) != ("ijepa", "block"):
            raise ConfigError(
                f"data.masking.style=official goes with kind=ijepa and context=block, not with "
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
        if self.ijepa_compat and (self.kind != "ijepa" or self.context != "block"):
            raise ConfigError(
                "data.masking.ijepa_compat=true goes with kind=ijepa and context=block only"
            )


@dataclass
class SyntheticSettings:
    # textured shapes written to root, one folder per class
    classes: int = MISSING
    per_class: int = MISSING
    # pixels of a side
    size: int = MISSING
    seed: int = MISSING

    def __post_init__(self) -> None:
        each_within("data.synthetic", self, ("classes", "per_class", "size"), 1)


@dataclass
class AugmentationSettings:
    # cut a random part of the image; false: its middle
    random_crop: bool = MISSING
    # area of that part over that of the image
    crop_scale: list[float] = MISSING
    # bilinear or bicubic
    interpolation: str = MISSING
    # mirror every other image
    horizontal_flip: bool = MISSING
    # strength of changes of brightness, contrast, saturation and hue; 0: none
    color_jitter: float = MISSING
    # strength of SimCLR's and I-JEPA's color distortion: four times out of five stronger changes of
    # the same, and every fifth image gray; 0: none
    color_distortion: float = 0.0
    # probability of a Gaussian blur of 0.1 to 2 pixels
    blur: float = 0.0
    # make the views of a whole batch on the device; all images need one size in pixels
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
class DataSettings:
    # images to train on: a folder, a pack of `overt data pack`, or a .npz archive
    root: str = MISSING
    # images to evaluate on, likewise; null: the held-out share of root
    val_root: str | None = MISSING
    # with val_root null: share of the images of root that is not trained on
    held_out: float = MISSING
    # folders in root are classes, which k-NN and probes need, and those of val_root are matched by
    # name; false: images lie anywhere, and labels of packs and archives are not read
    labelled: bool = MISSING
    # synthetic images written to root before training; null: the data are there
    synthetic: SyntheticSettings | None = MISSING
    # (height, width) in pixels
    image_size: list[int] = MISSING
    # mean and deviation of the colors, from 0 to 1, that are taken off
    mean: list[float] = MISSING
    std: list[float] = MISSING
    augmentation: AugmentationSettings = MISSING
    masking: MaskingSettings = MISSING
    # images of an evaluation are resized to this multiple of image_size, then cut to their middle
    margin: float = 1.14

    def __post_init__(self) -> None:
        within("data.margin", self.margin, 1)
        height_width("data.image_size", self.image_size)
        within("data.held_out", self.held_out, 0, 1, below=True)
        for key in ("mean", "std"):
            if len(getattr(self, key)) != 3:
                raise ConfigError(f"data.{key} takes three numbers: red, green and blue")
        for number in self.std:
            within("data.std", number, 0, above=True)


@dataclass
class LossSettings:
    # distance of prediction and target: mse, smoothl1 or huber; or with a term against collapse:
    # hjepa, combined (VICReg), hjepa_sigreg, cjepa, which take jepa_loss_type as distance
    type: str = MISSING
    jepa_loss_type: str = MISSING
    # where Huber's loss turns from quadratic to linear
    huber_delta: float = MISSING
    # weight of each level, the finest first
    hierarchy_weights: list[float] = MISSING
    # compare directions only
    normalize_embeddings: bool = MISSING
    # no gradient through the targets; false needs model.use_target_encoder=false
    detach_targets: bool = MISSING
    # VICReg on the features of visible patches: its weight, and those of its two terms
    vicreg_weight: float = MISSING
    vicreg_variance_weight: float = MISSING
    vicreg_covariance_weight: float = MISSING
    vicreg_eps: float = MISSING
    # SIGReg on the same: its weight, and the number of random directions, new in every step
    sigreg_weight: float = MISSING
    sigreg_num_slices: int = MISSING
    # how each direction is compared with a normal distribution: char_function, or reference_points
    # (the original's other test: its memory grows with the square of the tokens)
    sigreg_test: str = MISSING
    # take mean and scale off each direction first, as the original does; then the term sees neither
    sigreg_standardize: bool = MISSING
    # NT-Xent between two views of each image: its weight and temperature
    contrastive_weight: float = MISSING
    contrastive_temperature: float = MISSING
    # of a classifier: probability that is spread over all classes
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        one_of("loss.type", self.type, tuple(LOSS_TYPES))
        one_of("loss.jepa_loss_type", self.jepa_loss_type, ("mse", "smoothl1", "huber"))
        one_of("loss.sigreg_test", self.sigreg_test, ("char_function", "reference_points"))
        for weight in self.hierarchy_weights:
            within("loss.hierarchy_weights", weight, 0)
        weights = (
            "vicreg_weight", "vicreg_variance_weight", "vicreg_covariance_weight", "sigreg_weight",
            "contrastive_weight",
        )  # fmt: skip
        each_within("loss", self, weights, 0)
        positive = ("huber_delta", "vicreg_eps", "contrastive_temperature")
        each_within("loss", self, positive, 0, above=True)
        within("loss.label_smoothing", self.label_smoothing, 0, 1, below=True)
        within("loss.sigreg_num_slices", self.sigreg_num_slices, 1)

    @property
    def distance(self) -> str:
        """mse, smoothl1 or huber."""
        return LOSS_TYPES[self.type][0] or self.jepa_loss_type

    @property
    def extra(self) -> str | None:
        """vicreg, sigreg, contrastive or nothing."""
        return LOSS_TYPES[self.type][1]


@dataclass
class CollapseSettings:
    # look at the features every N steps; null: never
    every_steps: int | None = MISSING
    # tokens looked at, of each process
    max_tokens: int = MISSING
    # alarm where features of context or target vary by less than this share of their size
    min_std: float = MISSING
    # alarm where their effective rank is below this share of embed_dim
    min_rank: float = MISSING
    # looks in a row with an alarm before the run is stopped; null: it only warns
    stop_after: int | None = MISSING

    def __post_init__(self) -> None:
        each_within("evaluation.collapse", self, ("every_steps", "max_tokens", "stop_after"), 1)


@dataclass
class LinearProbeSettings:
    # train a linear layer on the frozen features in every evaluation
    enabled: bool = MISSING
    epochs: int = MISSING
    batch_size: int = MISSING
    # of a single layer; a sweep has its own rates
    lr: float = MISSING
    # train layers of several rates and weight decays in one pass, on standardized features, and
    # score the one that is best on a tenth of the training features, which it did not see
    sweep: bool = False
    # with sweep: also learn from these fractions of the labels, of every class alike
    label_fractions: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for fraction in self.label_fractions:
            within("evaluation.linear_probe.label_fractions", fraction, 0, 1, above=True)
        if self.label_fractions and not self.sweep:
            raise ConfigError(
                "evaluation.linear_probe.label_fractions needs evaluation.linear_probe.sweep=true"
            )


@dataclass
class AttentiveProbeSettings:
    # train a block of cross attention on all frozen patch features in every evaluation; these are
    # kept in memory: two bytes x samples x patches x embed_dim
    enabled: bool = MISSING
    epochs: int = MISSING
    batch_size: int = MISSING
    lr: float = MISSING
    # keep none of them: every epoch encodes all images again, on all ranks
    stream: bool = False


@dataclass
class EvaluationSettings:
    # images of each set that are used at most: of every class alike, the same in every evaluation;
    # null: all
    max_samples: int | None = MISSING
    # images encoded at once
    batch_size: int = MISSING
    # neighbors that vote for knn_top1
    k: int = MISSING
    temperature: float = MISSING
    # features are those of this many last blocks of the target encoder, one behind the other
    layers: int = MISSING
    linear_probe: LinearProbeSettings = MISSING
    attentive_probe: AttentiveProbeSettings = MISSING
    # folder to write the features to, as training.safetensors and held_out.safetensors; null: none
    export: str | None = MISSING
    collapse: CollapseSettings = MISSING
    # loader processes of each rank that read the images of an evaluation; 0: the rank itself
    num_workers: int = 0
    # further numbers of neighbors, each scored as knn_top1_kN
    further_k: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        each_within("evaluation", self, ("max_samples", "batch_size", "k", "layers"), 1)
        within("evaluation.num_workers", self.num_workers, 0)
        for neighbors in self.further_k:
            within("evaluation.further_k", neighbors, 1)
        within("evaluation.temperature", self.temperature, 0, above=True)
        for name in ("linear_probe", "attentive_probe"):
            probe, section = getattr(self, name), f"evaluation.{name}"
            each_within(section, probe, ("epochs", "batch_size"), 1)
            within(f"{section}.lr", probe.lr, 0, above=True)


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        """Refuse what no section can see by itself."""
        model, data, loss = self.model, self.data, self.loss
        patch = model.patch()
        for name, side in zip(("height", "width"), data.image_size, strict=True):
            if side % patch:
                raise ConfigError(
                    f"data.image_size={list(data.image_size)}: the {name} {side} is not a "
                    f"multiple of the patch size {patch}; use {side - side % patch or patch}"
                )
        self._check_grid(data.image_size[0] // patch, data.image_size[1] // patch)
        if self.evaluation.layers > model.sizes().depth:
            raise ConfigError(
                f"evaluation.layers={self.evaluation.layers}, but the encoder has "
                f"{model.sizes().depth} blocks"
            )
        for probe in ("linear_probe", "attentive_probe"):
            if getattr(self.evaluation, probe).enabled and not data.labelled:
                raise ConfigError(
                    f"evaluation.{probe}.enabled=true learns classes, but data.labelled=false "
                    "reads images without them; change one of the two"
                )
        if len(loss.hierarchy_weights) != model.num_hierarchies:
            raise ConfigError(
                f"loss.hierarchy_weights has {len(loss.hierarchy_weights)} numbers, "
                f"model.num_hierarchies={model.num_hierarchies}; give one for each level"
            )
        if not loss.detach_targets and model.use_target_encoder:
            raise ConfigError(
                "loss.detach_targets=false has no effect with a target encoder, which has no "
                "gradient; set model.use_target_encoder=false or loss.detach_targets=true"
            )
        if data.masking.weigh == "blocks" and model.pooling != "grid":
            raise ConfigError(
                f"data.masking.weigh=blocks goes with model.pooling=grid, not {model.pooling}; set "
                "data.masking.weigh=tokens"
            )
        if data.masking.fixed_shapes:
            refuse_filling(model, loss)
        if model.hidden_tokens == "zero" and data.masking.num_context_masks > 1:
            raise ConfigError(
                "model.hidden_tokens=zero takes one context; set data.masking.num_context_masks=1"
            )

    def _check_grid(self, down: int, across: int) -> None:
        """Refuse what an image of this many patches has no room for."""
        model, masking = self.model, self.data.masking
        grid_text = f"an image has {down} x {across} patches"
        if masking.min_keep > down * across:
            raise ConfigError(
                f"data.masking.min_keep={masking.min_keep}, but {grid_text}; lower it, or raise "
                "data.image_size"
            )
        if (masking.ijepa_compat or masking.style == "official") and min(down, across) < 2:
            raise ConfigError(
                "data.masking.ijepa_compat=true or style=official needs 2 patches along each side, "
                f"but {grid_text}"
            )
        side = 2 ** (model.num_hierarchies - 1)
        if model.pooling == "grid" and side > max(down, across):
            raise ConfigError(
                f"model.num_hierarchies={model.num_hierarchies}: regions of the last level have "
                f"{side} x {side} patches, but {grid_text}; use fewer levels, smaller patches or "
                "larger images"
            )


def refuse_filling(model: ModelSettings, loss: LossSettings) -> None:
    """Refuse to fill batches up where the tokens that fill them would count."""
    differing = {
        f"model.pooling={model.pooling}": model.pooling != "grid",
        f"model.projection_norm={model.projection_norm}": model.projection_norm == "batchnorm",
        f"loss.type={loss.type}": loss.extra is not None,
    }
    reasons = [name for name, counts in differing.items() if counts]
    if reasons:
        raise ConfigError(
            f"data.masking.fixed_shapes=true with {' and '.join(reasons)}: the tokens that fill a "
            "batch up would count there; set training.cuda_graph=false, which fixed_shapes follows"
        )
