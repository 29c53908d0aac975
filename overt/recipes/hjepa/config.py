"""Settings of the H-JEPA recipes: names, types and checks; the values are in the YAML files.

Names follow the H-JEPA project; I-JEPA (arXiv:2301.08243) is a choice of values. This file does not
import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from overt.checks import each_within, one_of, within
from overt.errors import ConfigError
from overt.recipes.hjepa.data_config import DataSettings
from overt.recipes.hjepa.model_config import ModelSettings

# The distance used by a type of loss (None: jepa_loss_type), and its additional term.
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
class LossSettings:
    # distance of prediction and target: mse, smoothl1 or huber; or with a term against collapse:
    # hjepa, combined (VICReg), hjepa_sigreg, cjepa, which use jepa_loss_type as distance
    type: str = MISSING
    # mse, smoothl1 or huber: the distance where type does not name one
    jepa_loss_type: str = MISSING
    # where Huber's loss changes from quadratic to linear
    huber_delta: float = MISSING
    # weight of each level, the finest first
    hierarchy_weights: list[float] = MISSING
    # compare directions only
    normalize_embeddings: bool = MISSING
    # no gradient through the targets; false needs model.use_target_encoder=false
    detach_targets: bool = MISSING
    # weight of VICReg on the features of visible patches
    vicreg_weight: float = MISSING
    # weight of VICReg's variance term within it
    vicreg_variance_weight: float = MISSING
    # weight of VICReg's covariance term within it
    vicreg_covariance_weight: float = MISSING
    # added to the variance before its square root, so that the gradient stays finite
    vicreg_eps: float = MISSING
    # weight of SIGReg on the features of visible patches
    sigreg_weight: float = MISSING
    # random directions of SIGReg, resampled in every step
    sigreg_num_slices: int = MISSING
    # how each direction is compared with a normal distribution: char_function, or reference_points
    # (the original's other test: its memory grows with the square of the tokens)
    sigreg_test: str = MISSING
    # standardize each direction first, as the original does; the term then ignores mean and scale
    sigreg_standardize: bool = MISSING
    # weight of NT-Xent between two views of each image
    contrastive_weight: float = MISSING
    # temperature of NT-Xent: cosines are divided by it
    contrastive_temperature: float = MISSING
    # of a classifier: label smoothing, the probability spread over all classes
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
    # check the features every N steps; null: never
    every_steps: int | None = MISSING
    # tokens checked on each rank
    max_tokens: int = MISSING
    # alarm if features of context or target vary by less than this fraction of their size
    min_std: float = MISSING
    # alarm if their effective rank is below this fraction of embed_dim
    min_rank: float = MISSING
    # consecutive alarms before the run is stopped; null: only warn
    stop_after: int | None = MISSING

    def __post_init__(self) -> None:
        each_within("evaluation.collapse", self, ("every_steps", "max_tokens", "stop_after"), 1)


@dataclass
class LinearProbeSettings:
    # train a linear layer on the frozen features in every evaluation
    enabled: bool = MISSING
    # passes over the training features
    epochs: int = MISSING
    # features per step of the probe
    batch_size: int = MISSING
    # learning rate of a single layer; a sweep has its own rates
    lr: float = MISSING
    # train layers with several learning rates and weight decays in one pass, on standardized
    # features, and score the best one on a held-out tenth of the training features
    sweep: bool = False
    # with sweep: also learn from these fractions of the labels, balanced over classes: the same
    # number of images of each, as far as they reach
    label_fractions: list[float] = field(default_factory=list)
    # with sweep: also learn from this many random crops, randomly flipped, of every training image
    views: int = 0

    def __post_init__(self) -> None:
        within("evaluation.linear_probe.views", self.views, 0)
        for fraction in self.label_fractions:
            within("evaluation.linear_probe.label_fractions", fraction, 0, 1, above=True)
        for key in ("label_fractions", "views"):
            if getattr(self, key) and not self.sweep:
                raise ConfigError(
                    f"evaluation.linear_probe.{key} needs evaluation.linear_probe.sweep=true"
                )


@dataclass
class AttentiveProbeSettings:
    # train a cross-attention block on all frozen patch features in every evaluation; these are kept
    # in memory: two bytes x samples x patches x embed_dim
    enabled: bool = MISSING
    # passes over the training images
    epochs: int = MISSING
    # images per step of the probe
    batch_size: int = MISSING
    # learning rate of AdamW
    lr: float = MISSING
    # do not keep them: every epoch encodes all images again, on all ranks
    stream: bool = False


@dataclass
class EvaluationSettings:
    # maximum number of images of each set, balanced over classes and the same in every evaluation;
    # null: all
    max_samples: int | None = MISSING
    # images per batch
    batch_size: int = MISSING
    # neighbors that vote for knn_top1
    k: int = MISSING
    # a neighbor votes with exp(cosine / temperature)
    temperature: float = MISSING
    # use the concatenated features of this many last blocks of the target encoder
    layers: int = MISSING
    linear_probe: LinearProbeSettings = MISSING
    attentive_probe: AttentiveProbeSettings = MISSING
    # folder for the features, as training.safetensors and held_out.safetensors; null: not written
    export: str | None = MISSING
    collapse: CollapseSettings = MISSING
    # loader processes per rank that read the images of an evaluation; 0: the rank itself
    num_workers: int = 0
    # further numbers of neighbors, each scored as knn_top1_kN
    further_k: list[int] = field(default_factory=list)
    # score the features of this level of H-JEPA, 0 the finest, through its projection if
    # model.projection=shared; null: those of the encoder's blocks
    level: int | None = None
    # of a classifier: score its frozen features too, by k-NN and probes; false: only its accuracy
    frozen_features: bool = True
    # further labeled sets by name: {flowers: ROOT}, with ROOT/train and ROOT/test, or one set of
    # which a fifth is scored. Scores are named NAME/knn_top1 and so on
    transfer: dict[str, str] = field(default_factory=dict)
    # folders of images with masks by name: ROOT/images and ROOT/masks, or both in ROOT/train and
    # ROOT/test. Scores are named NAME/knn_miou, NAME/linear_miou and so on
    dense: dict[str, str] = field(default_factory=dict)
    # maximum number of patches that these learn from
    dense_patches: int = 100_000

    def __post_init__(self) -> None:
        counts = ("max_samples", "batch_size", "k", "layers", "dense_patches")
        each_within("evaluation", self, counts, 1)
        for key in ("transfer", "dense"):
            for name in getattr(self, key):
                if not name or "/" in name:
                    raise ConfigError(
                        f"evaluation.{key} has a set {name!r}; its scores are called NAME/SCORE: "
                        "use a name that is not empty and has no slash"
                    )
        twice = sorted(set(self.transfer) & set(self.dense))
        if twice:
            raise ConfigError(
                f"evaluation.transfer and evaluation.dense both have a set {twice[0]}; give "
                "them different names"
            )
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
        """Reject combinations that no section can check by itself."""
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
        level, levels = self.evaluation.level, model.num_hierarchies
        if level is not None and (not 0 <= level < levels or self.evaluation.layers > 1):
            raise ConfigError(
                f"evaluation.level={level} with model.num_hierarchies={levels} and "
                f"evaluation.layers={self.evaluation.layers}; use a level from 0 to {levels - 1} "
                "and evaluation.layers=1, or evaluation.level=null"
            )
        for probe in ("linear_probe", "attentive_probe"):
            if getattr(self.evaluation, probe).enabled and not data.labeled:
                raise ConfigError(
                    f"evaluation.{probe}.enabled=true learns classes, but data.labeled=false "
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
        for reason, applies in (
            ("data.augmentation.device=true", data.augmentation.device),
            (f"loss.type={loss.type}, which needs two views", loss.extra == "contrastive"),
        ):
            if data.reduced_decode and applies:
                raise ConfigError(
                    f"data.reduced_decode=true has no effect with {reason}; set "
                    "data.reduced_decode=false"
                )
        if data.masking.weigh == "blocks" and model.pooling != "grid":
            raise ConfigError(
                f"data.masking.weigh=blocks needs model.pooling=grid, got {model.pooling}; set "
                "data.masking.weigh=tokens"
            )
        if data.masking.fixed_shapes is True:
            refuse_filling(model, loss)
        if model.hidden_tokens == "zero" and data.masking.num_context_masks > 1:
            raise ConfigError(
                "model.hidden_tokens=zero takes one context; set data.masking.num_context_masks=1"
            )

    def _check_grid(self, down: int, across: int) -> None:
        """Reject masks that do not fit into an image of this many patches."""
        model, masking = self.model, self.data.masking
        grid_text = f"an image has {down} x {across} patches"
        if masking.min_keep > down * across:
            raise ConfigError(
                f"data.masking.min_keep={masking.min_keep}, but {grid_text}; lower it, or raise "
                "data.image_size"
            )
        kept = down * across - round(down * across * masking.mask_scale[1])
        if masking.kind == "random" and masking.min_keep > max(kept, 1):
            raise ConfigError(
                f"data.masking.min_keep={masking.min_keep}, but {grid_text}, and mask_scale="
                f"{list(masking.mask_scale)} with kind=random keeps as few as {max(kept, 1)}; set "
                f"min_keep={max(kept, 1)}, or lower mask_scale"
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
        if model.pooling == "sequence" and side > down * across:
            raise ConfigError(
                f"model.num_hierarchies={model.num_hierarchies}: windows of the last level have "
                f"{side} patches, but {grid_text}; use fewer levels, smaller patches or larger "
                "images"
            )


def against_filling(model: ModelSettings, loss: LossSettings) -> list[str]:
    """Return the settings with which padding tokens would affect the result."""
    differing = {
        f"model.pooling={model.pooling}": model.pooling != "grid",
        f"model.projection_norm={model.projection_norm}": model.projection_norm == "batchnorm",
        # A contrastive term compares whole views, which have no padding.
        f"loss.type={loss.type}": loss.extra in ("vicreg", "sigreg"),
    }
    return [name for name, counts in differing.items() if counts]


def refuse_filling(model: ModelSettings, loss: LossSettings) -> None:
    """Reject padded batches if padding tokens would affect the result."""
    reasons = against_filling(model, loss)
    if reasons:
        raise ConfigError(
            f"data.masking.fixed_shapes=true with {' and '.join(reasons)}: the tokens that fill a "
            "batch up would count there; set training.cuda_graph=false, which fixed_shapes follows"
        )
