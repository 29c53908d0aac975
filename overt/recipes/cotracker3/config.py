"""Settings of the CoTracker3 recipes: names, types and checks; the values are in the YAML files.

Section numbers refer to the paper, arXiv:2410.11831. This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, height_width, multiple_of, one_of, within
from overt.data.tracking.settings import (
    HELD_OUT,
    KubricSettings,
    ScoringSettings,
    UnlabeledSettings,
)
from overt.errors import ConfigError

RECOMPUTABLE = ("normed", "features", "correlation", "hidden", "update")


@dataclass
class ModelSettings:
    # online model: frames per window; offline model: frames of its time embedding, which is
    # interpolated to other lengths
    window_len: int = MISSING
    # pixels of the image per cell of the feature map
    stride: int = MISSING
    # the correlation compares squares of 2 r + 1 cells around a point
    corr_radius: int = MISSING
    # levels of the feature pyramid, each half the size of the previous one
    corr_levels: int = MISSING
    # learned tracks through which the points exchange information
    num_virtual_tracks: int = MISSING
    # (height, width) by which relative motion is scaled before it is encoded
    model_resolution: list[int] = MISSING
    # channels of the feature maps (128 in all released weights)
    latent_dim: int = MISSING
    # width of the transformer (384 in all released weights)
    hidden_size: int = MISSING
    # attention heads of every block
    num_heads: int = MISSING
    # attention blocks along time
    time_depth: int = MISSING
    # attention blocks across points; divides time_depth
    space_depth: int = MISSING
    # width of a block's MLP over the width of the transformer
    mlp_ratio: float = MISSING
    # hidden width of the MLP that reads the correlation of a level (384 in all released weights)
    corr_hidden: int = MISSING
    # output width of this MLP for each level (256 in all released weights)
    corr_out: int = MISSING
    # visibility and confidence come from a separate layer; false: from that of the position
    linear_layer_for_vis_conf: bool = MISSING
    # refinement iterations in training
    train_iters: int = MISSING
    # refinement iterations in evaluation and tracking
    eval_iters: int = MISSING
    # round video and queries to bfloat16 in training, as the official runs did: queries are then
    # off by up to a pixel
    bf16_inputs: bool = MISSING
    # what a training step recomputes in its backward pass instead of storing it: any of normed
    # (everything between the convolutions of the feature network), features, correlation, hidden
    # (layers of the transformer's MLPs) and update (the whole transformer); [auto]: nothing if
    # training.memory_gib allows it, otherwise the cheapest choice that fits
    recompute: list[str] = MISSING
    # keep the layer of visibility and confidence as it is: pseudo-labels say nothing about them
    freeze_visibility: bool | None = None  # null: false, as in older runs

    def __post_init__(self) -> None:
        if self.freeze_visibility and not self.linear_layer_for_vis_conf:
            raise ConfigError(
                "model.freeze_visibility=true needs model.linear_layer_for_vis_conf=true: "
                "otherwise one layer gives positions and visibility"
            )
        is_auto = self.recompute == ["auto"]
        unknown = [] if is_auto else sorted(set(self.recompute) - set(RECOMPUTABLE))
        if unknown:
            raise ConfigError(
                f"model.recompute={unknown}; allowed: any of {', '.join(RECOMPUTABLE)}, or [auto]"
            )
        sizes = (
            "window_len", "stride", "corr_levels", "num_virtual_tracks", "latent_dim",
            "hidden_size", "num_heads", "time_depth", "space_depth", "corr_hidden", "corr_out",
            "train_iters", "eval_iters",
        )  # fmt: skip
        each_within("model", self, sizes, 1)
        within("model.corr_radius", self.corr_radius, 0)
        within("model.latent_dim", self.latent_dim, 4)  # the feature network takes quarters of it
        within("model.mlp_ratio", self.mlp_ratio, 1 / self.hidden_size)
        multiple_of("model.hidden_size", self.hidden_size, "model.num_heads", self.num_heads)
        multiple_of("model.time_depth", self.time_depth, "model.space_depth", self.space_depth)
        height_width("model.model_resolution", self.model_resolution)
        if self.corr_levels * self.corr_out % 2:
            raise ConfigError(
                f"model.corr_levels={self.corr_levels} times model.corr_out={self.corr_out} is "
                "odd; one of them must be even, since a time embedding has as many sines as cosines"
            )


@dataclass
class SourceSettings:
    # folder of sequences, like data.root
    root: str = MISSING
    # fraction of the samples from this folder, relative to the other weights
    weight: float = MISSING


@dataclass
class DataSettings(KubricSettings):
    # folders to train on, a list of {root, weight}; null: only root. Evaluation always uses root
    sources: list[SourceSettings] | None = MISSING
    # frames of a clip; with random_sequence_len the upper bound, exclusive
    sequence_len: int = MISSING
    # lower bound of the clip length; null: always sequence_len
    random_sequence_len: int | None = MISSING
    # sample the number of frames to skip between two frames of a clip
    random_frame_rate: bool = MISSING
    # tracks of a sample
    traj_per_sample: int = MISSING
    # draw how many tracks a sample has, up to traj_per_sample, with fewer frames for more tracks
    random_number_traj: bool | None = None  # null: false, as in older runs
    # candidates are visible in the first or the middle frame; also those of the last frame?
    sample_vis_last_frame: bool = MISSING
    # query frame: "random" among the visible ones, or the "first" (random for one track in four)
    query_sampling: str = MISSING
    # passes over the sequence list per epoch
    repeat: int = MISSING
    # unlabeled videos below `root`, which trained trackers label during training; null: the
    # sequences in `root` have labels
    unlabeled: UnlabeledSettings | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unlabeled is not None:
            self._check_unlabeled()
        if self.procedural is not None:
            self._check_procedural()
        one_of("data.query_sampling", self.query_sampling, ("random", "first"))
        each_within("data", self, ("sequence_len", "traj_per_sample", "repeat"), 1)
        if self.random_number_traj:  # at least 1 and fewer than all
            within("data.traj_per_sample (with data.random_number_traj)", self.traj_per_sample, 2)
        if self.sources is not None and not self.sources:
            raise ConfigError(
                "data.sources=[] leaves nothing to train on; null trains on data.root, or give a "
                "list of {root: FOLDER, weight: NUMBER}"
            )
        for index, source in enumerate(self.sources or ()):
            within(f"data.sources[{index}].weight", source.weight, 0, above=True)
        shortest = self.random_sequence_len
        if shortest is not None and not 1 <= shortest < self.sequence_len:
            raise ConfigError(
                f"data.random_sequence_len={shortest} must be from 1 to below "
                f"data.sequence_len={self.sequence_len}; null always takes sequence_len frames"
            )

    def _check_unlabeled(self) -> None:
        if self.augment:
            raise ConfigError(
                "data.augment=true has no effect on unlabeled videos: teacher and student see the "
                "same frames; set data.augment=false"
            )
        if self.procedural is not None or self.sources is not None or self.random_number_traj:
            raise ConfigError(
                "data.unlabeled labels the videos of data.root: set data.procedural=null, "
                "data.sources=null and data.random_number_traj=false"
            )

    def _check_procedural(self) -> None:
        """Reject settings of clips that are read."""
        self.check_rendered_points("data.traj_per_sample", self.traj_per_sample)
        drawn = self.random_sequence_len is not None or bool(self.random_number_traj)
        if drawn or self.sources is not None:
            raise ConfigError(
                "data.procedural makes clips of data.sequence_len frames and reads none: set "
                "data.random_sequence_len=null, data.random_number_traj=false and data.sources=null"
            )


@dataclass
class LossSettings:
    # weight of the position error of visible points
    visible_weight: float = MISSING
    # weight of the position error of occluded points
    invisible_weight: float = MISSING
    # weight of the binary cross-entropy of visibility
    visibility_weight: float = MISSING
    # weight of the binary cross-entropy of confidence; see confidence_radius
    confidence_weight: float = MISSING
    # iteration i of I counts gamma^(I - 1 - i)
    gamma: float = MISSING
    # pixels at which Huber's loss changes from quadratic to linear
    huber_delta: float = MISSING
    # Huber for visible points; false: the absolute error
    huber_visible: bool = MISSING
    # Huber for occluded points too, as in the paper; the released weights used L1
    huber_invisible: bool = MISSING
    # pixels within which a prediction should be confident
    confidence_radius: float = MISSING
    # each clip's terms are means over that clip, and the loss is the mean over clips, as in the
    # official runs; false: means over the entries of the global batch, where a clip with more
    # visible points weighs more
    per_clip: bool | None = None  # null: false, as in older runs

    def __post_init__(self) -> None:
        terms = ("visible", "invisible", "visibility", "confidence")
        each_within("loss", self, [f"{term}_weight" for term in terms], 0)
        each_within("loss", self, ("gamma", "huber_delta", "confidence_radius"), 0, above=True)


@dataclass
class EvaluationSettings(ScoringSettings):
    # a point is visible if visibility x confidence exceeds this
    visible_threshold: float = MISSING
    # TAP-Vid and `overt track`: (height, width) to which videos are resized for the model
    resolution: list[int] = MISSING
    # offline model: (height, width) of a second pass, which refines the tracks of the first in
    # fine_iters iterations; null: one pass
    fine_resolution: list[int] | None = None
    # refinement iterations of the second pass
    fine_iters: int = 2
    # TAP-Vid, offline model: each query with separate support points, as in the paper's tables;
    # false: all queries together, which is faster
    single_point: bool = MISSING
    # offline model: side of the grid of support points over the first frame; 0: none
    grid_size: int = MISSING
    # with single_point: side of the grid of support points around the query; 0: none
    local_grid_size: int = MISSING
    # offline model: support points at random frames and positions
    random_points: int = MISSING
    # with single_point: queries per batch; affects memory, not scores
    queries_per_batch: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        within("evaluation.visible_threshold", self.visible_threshold, 0, 1)
        each_within("evaluation", self, ("grid_size", "local_grid_size", "random_points"), 0)
        within("evaluation.queries_per_batch", self.queries_per_batch, 1)
        height_width("evaluation.resolution", self.resolution, least=2)
        if self.fine_resolution is not None:
            height_width("evaluation.fine_resolution", self.fine_resolution, least=2)
        within("evaluation.fine_iters", self.fine_iters, 1)


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        if self.evaluation.dataset == HELD_OUT:
            self.data.given_root()
        if self.data.procedural is not None and not self.loss.per_clip:
            raise ConfigError(
                "data.procedural makes clips on the device, after the counts of the global batch "
                "are taken: set loss.per_clip=true, which needs none"
            )
        if self.data.unlabeled is not None and not self.loss.per_clip:
            raise ConfigError(
                "data.unlabeled labels clips on the device, after the counts of the global batch "
                "are taken: set loss.per_clip=true, which needs none"
            )
        self._check_size("data.crop_size", self.data.crop_size)
        self._check_size("evaluation.resolution", self.evaluation.resolution)
        if self.evaluation.fine_resolution is not None:
            self._check_size("evaluation.fine_resolution", self.evaluation.fine_resolution)

    def _check_size(self, key: str, size: list[int]) -> None:
        """Reject frame sizes for which no feature pyramid can be built."""
        stride, levels = self.model.stride, self.model.corr_levels
        smallest = stride * 2 ** (levels - 1)
        if any(side % stride for side in size) or min(size) < smallest:
            raise ConfigError(
                f"{key}={list(size)}: height and width must be multiples of model.stride={stride} "
                f"and at least {smallest}, so that model.corr_levels={levels} levels fit"
            )
