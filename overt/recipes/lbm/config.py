"""Settings of the LBM recipe: names, types and refusals; the values live in the YAML files.

Section numbers refer to the paper, arXiv:2509.16527. This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.data.augment import AugmentationSettings
from overt.errors import ConfigError, nearest

HELD_OUT = "kubric_held_out"
TAPVID = ("tapvid_davis", "tapvid_kinetics", "tapvid_rgb_stacking", "tapvid_robotap")


@dataclass
class ModelSettings:
    # (height, width) to which frames are resized; multiples of 32
    input_size: list[int] = MISSING
    # layers, each with its own look at the whole frame
    num_layers: int = MISSING
    # channels of features and queries
    embed_dim: int = MISSING
    # channels of the first stage of the ResNet; 64 is ResNet-18
    backbone_width: int = MISSING
    # attention heads everywhere
    num_heads: int = MISSING
    # levels of the feature pyramid, each half the size of the one before
    num_levels: int = MISSING
    # places that a head of the deformable attention reads on each level
    num_neighbors: int = MISSING
    # candidates of a point in the first layer; later layers have 4, the last has 1
    top_k_regions: int = MISSING
    # rate of all dropouts
    dropout: float = MISSING
    # share of the memory's entries that a layer must do without in training
    random_memory_mask_drop: float = MISSING
    # frames that are remembered, in training
    memory_size: int = MISSING
    # a point is visible, and remembered, from this probability on
    visible_threshold: float = MISSING
    # correlations are divided by this before the softmax over all cells
    temperature: float = MISSING
    # keep only what passes between frames, make the rest again in the backward pass: a tenth of
    # the memory for a quarter more time
    recompute: bool = MISSING
    # weights of an ImageNet ResNet-18 to start from, torchvision's file; null: random
    backbone_weights: str | None = MISSING

    def __post_init__(self) -> None:
        if len(self.input_size) != 2 or any(side < 32 or side % 32 for side in self.input_size):
            raise ConfigError(
                f"model.input_size={list(self.input_size)}; it takes [height, width], multiples "
                "of 32"
            )
        if self.embed_dim % self.num_heads:
            raise ConfigError(
                f"model.embed_dim={self.embed_dim} is not a multiple of "
                f"model.num_heads={self.num_heads}"
            )
        least = {
            "num_layers": 2, "num_heads": 1, "num_levels": 1, "num_neighbors": 1,
            "top_k_regions": 1, "memory_size": 1, "backbone_width": 1,
        }  # fmt: skip
        for key, bound in least.items():
            if getattr(self, key) < bound:
                raise ConfigError(f"model.{key}={getattr(self, key)}; it must be at least {bound}")
        if self.num_levels > 4:
            raise ConfigError(
                f"model.num_levels={self.num_levels}; at most 4: the input's sides are multiples "
                "of 32, and the coarsest cell is then 32 pixels wide"
            )
        for key in ("dropout", "random_memory_mask_drop"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(f"model.{key}={getattr(self, key)}; allowed is 0 to below 1")
        if not 0 < self.visible_threshold < 1:
            raise ConfigError(
                f"model.visible_threshold={self.visible_threshold}; allowed is above 0 to below 1"
            )
        if self.temperature <= 0:
            raise ConfigError(f"model.temperature={self.temperature}; allowed is a number above 0")


@dataclass
class SyntheticSettings:
    # sequences of textured shapes over a moving background, in the layout of kubric_lbm
    count: int = MISSING
    frames: int = MISSING
    height: int = MISSING
    width: int = MISSING
    # tracked points per sequence
    points: int = MISSING
    seed: int = MISSING
    # moving shapes per sequence, and how fast they move, in pixels per frame
    shapes: int = MISSING
    speed: float = MISSING


@dataclass
class DataSettings:
    # folder with one sub-folder per sequence: SEQ/frames/*.png and SEQ/SEQ.npy, or with one file
    # SEQ.npz each, as `overt data pack` writes them; null where neither training nor evaluation
    # reads it
    root: str | None = MISSING
    # synthetic sequences written to root before training; null: the data are there
    synthetic: SyntheticSettings | None = MISSING
    # (height, width) cut from every frame
    crop_size: list[int] = MISSING
    # frames of a clip
    frames: int = MISSING
    # tracks of a sample; where a clip has fewer, the rest is empty and counts for nothing
    points: int = MISSING
    # sequences at the start of the sorted list kept out of training, used for evaluation
    held_out: int = MISSING
    # change colours, zoom, crop and mirror training clips as `augmentation` says; false: only crop
    augment: bool = MISSING
    augmentation: AugmentationSettings = MISSING

    def __post_init__(self) -> None:
        if len(self.crop_size) != 2 or min(self.crop_size) < 1:
            raise ConfigError(
                f"data.crop_size={list(self.crop_size)}; it takes [height, width] in pixels"
            )
        for key, bound in {"frames": 1, "points": 1, "held_out": 0}.items():
            if getattr(self, key) < bound:
                raise ConfigError(f"data.{key}={getattr(self, key)}; it must be at least {bound}")


@dataclass
class LossSettings:
    # weight of the cross-entropy of the true cell among all cells
    classification_weight: float = MISSING
    # weight of the cross-entropy of visibility
    visibility_weight: float = MISSING
    # weight of the absolute error of the position, cut at 8 pixels
    regression_weight: float = MISSING
    # weight of the cross-entropy of being wrong; as published it counts twice for the point itself
    uncertainty_weight: float = MISSING
    # weight of the same for the candidates of all layers but the last
    candidates_weight: float = MISSING
    # learn in frames after the query's only; false: in all frames
    after_query: bool = MISSING


@dataclass
class EvaluationSettings:
    # what is scored: kubric_held_out, the first data.held_out sequences of data.root; or the videos
    # of tapvid_davis, tapvid_kinetics, tapvid_rgb_stacking or tapvid_robotap
    dataset: str = MISSING
    # folder that holds the files of TAP-Vid as their publisher packs them; null: kubric_held_out
    dataset_root: str | None = MISSING
    # frames that are remembered; the time embeddings are stretched to this
    memory_size: int = MISSING
    # a point counts as visible, and is remembered, where its probability is above this
    visible_threshold: float = MISSING
    # kubric_held_out: points of each sequence that are tracked and scored
    points_per_sequence: int = MISSING
    # kubric_held_out: frames of each sequence, from its first
    frames: int = MISSING
    # TAP-Vid: a query for each track where it is first visible (first), or in every fifth frame
    # that shows it (strided); the tracker never looks back, and frames before a query count as lost
    query_mode: str = MISSING
    # TAP-Vid: a fixed 50 of the videos of Kinetics and RoboTAP, none of over 300 frames
    fast: bool = MISSING

    def __post_init__(self) -> None:
        choices = {"dataset": (HELD_OUT, *TAPVID), "query_mode": ("first", "strided")}
        for key, allowed in choices.items():
            value = getattr(self, key)
            if value not in allowed:
                raise ConfigError(
                    f"evaluation.{key}={value}{nearest(value, allowed)}; allowed are "
                    f"{', '.join(allowed)}"
                )
        if self.dataset in TAPVID and self.dataset_root is None:
            raise ConfigError(
                f"evaluation.dataset={self.dataset} needs evaluation.dataset_root=FOLDER: the one "
                f"that holds the folder {self.dataset}"
            )
        for key in ("memory_size", "points_per_sequence", "frames"):
            if getattr(self, key) < 1:
                raise ConfigError(f"evaluation.{key}={getattr(self, key)}; it must be at least 1")
        if not 0 < self.visible_threshold < 1:
            raise ConfigError(
                f"evaluation.visible_threshold={self.visible_threshold}; allowed is above 0 to "
                "below 1"
            )


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        if self.evaluation.dataset == HELD_OUT:
            given_root(self.data)


def given_root(data: DataSettings) -> str:
    """The folder of sequences, refused where none is given."""
    if data.root is None:
        raise ConfigError(
            "these keys have no value yet: data.root; add data.root=FOLDER, where FOLDER has one "
            "sub-folder or one packed file per sequence"
        )
    return data.root
