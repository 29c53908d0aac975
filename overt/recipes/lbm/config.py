"""Settings of the LBM recipe: names, types and checks; the values are in the YAML files.

Section numbers refer to the paper, arXiv:2509.16527. This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, height_width, multiple_of, one_of, within
from overt.data.tracking.settings import HELD_OUT, KubricSettings, ScoringSettings
from overt.errors import ConfigError

CELL = 4  # pixels of a side: `backbone.STRIDE`, in a file that imports torch
RECOMPUTE = ("auto", "none", "maps", "frames")


@dataclass
class ModelSettings:
    # (height, width) to which frames are resized; multiples of 32
    input_size: list[int] = MISSING
    # layers, each of which correlates with the whole frame
    num_layers: int = MISSING
    # channels of features and queries
    embed_dim: int = MISSING
    # channels of the first stage of the ResNet; 64 is ResNet-18
    backbone_width: int = MISSING
    # attention heads everywhere
    num_heads: int = MISSING
    # levels of the feature pyramid, each half the size of the previous one
    num_levels: int = MISSING
    # points that a head of the deformable attention samples on each level
    num_neighbors: int = MISSING
    # candidates of a point in the first layer; later layers have 4, the last has 1
    top_k_regions: int = MISSING
    # rate of all dropouts
    dropout: float = MISSING
    # fraction of the memory's entries that a layer drops in training
    random_memory_mask_drop: float = MISSING
    # frames in memory during training
    memory_size: int = MISSING
    # a point is visible, and stored in memory, from this probability on
    visible_threshold: float = MISSING
    # correlations are divided by this before the softmax over all cells
    temperature: float = MISSING
    # what the backward pass recomputes instead of storing: none; maps, what the points sample from
    # each frame (with training.compile=blocks); frames, everything except the state between frames;
    # auto: the fastest of them that fits into training.memory_gib
    recompute: str = MISSING
    # weights of an ImageNet ResNet-18 to start from, torchvision's file, or the word random; with
    # to_be_given training is rejected
    backbone_weights: str | None = MISSING

    def __post_init__(self) -> None:
        height_width("model.input_size", self.input_size, least=32, multiple=32)
        within("model.num_layers", self.num_layers, 2)
        sizes = (
            "embed_dim", "num_heads", "num_levels", "num_neighbors", "top_k_regions",
            "memory_size", "backbone_width",
        )  # fmt: skip
        each_within("model", self, sizes, 1)
        multiple_of("model.embed_dim", self.embed_dim, "model.num_heads", self.num_heads)
        if self.num_levels > 4:
            raise ConfigError(
                f"model.num_levels={self.num_levels}; at most 4: the input's sides are multiples "
                "of 32, and the coarsest cell is then 32 pixels wide"
            )
        height, width = self.input_size
        cells = (height // CELL) * (width // CELL)
        if self.top_k_regions > cells:
            raise ConfigError(
                f"model.top_k_regions={self.top_k_regions}; at most {cells}, the cells of "
                f"{CELL} x {CELL} pixels in model.input_size={list(self.input_size)}"
            )
        each_within("model", self, ("dropout", "random_memory_mask_drop"), 0, 1, below=True)
        within("model.visible_threshold", self.visible_threshold, 0, 1, above=True, below=True)
        one_of("model.recompute", self.recompute, RECOMPUTE)
        within("model.temperature", self.temperature, 0, above=True)


@dataclass
class DataSettings(KubricSettings):
    # frames of a clip
    frames: int = MISSING
    # tracks of a sample; if a clip has fewer, the rest is padding, excluded from losses and metrics
    points: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("data", self, ("frames", "points"), 1)
        self.check_rendered_points("data.points", self.points)


@dataclass
class LossSettings:
    # weight of the cross-entropy of the true cell among all cells
    classification_weight: float = MISSING
    # weight of the cross-entropy of visibility
    visibility_weight: float = MISSING
    # weight of the absolute position error, clamped at 8 pixels
    regression_weight: float = MISSING
    # weight of the cross-entropy of being wrong; as published it has twice the weight for the point
    # itself
    uncertainty_weight: float = MISSING
    # weight of the same for the candidates of all layers but the last
    candidates_weight: float = MISSING
    # supervise only frames after the query; false: all frames
    after_query: bool = MISSING
    # clips of a micro-batch whose terms are divided by their common counts; the loss is the mean
    # over such groups. 4 is the official run, with 4 clips per process. null: counts of the global
    # batch, where a clip with more visible points has more weight
    clips_per_mean: int | None = None  # null in older runs

    def __post_init__(self) -> None:
        if self.clips_per_mean is not None:
            within("loss.clips_per_mean", self.clips_per_mean, 1)
        terms = ("classification", "visibility", "regression", "uncertainty", "candidates")
        each_within("loss", self, [f"{term}_weight" for term in terms], 0)


@dataclass
class EvaluationSettings(ScoringSettings):
    # TAP-Vid: a query for each track where it is first visible (first); strided queries are
    # rejected, because the tracker never looks back and frames before a query would count as lost
    query_mode: str = MISSING
    # frames in memory; the time embeddings are interpolated to this length
    memory_size: int = MISSING
    # a point is visible, and stored in memory, if its probability exceeds this
    visible_threshold: float = MISSING
    # null: overt ckpt export writes a step of plain operators, for any runtime; a number: one for
    # ONNX Runtime on a CPU, fastest with about this many points
    export_cpu_points: int | None = None  # null in older runs
    # null: float32; a folder of photographs: convolutions and large products with 8 bits, those of
    # the encoder by ranges measured on these. Needs export_cpu_points, and tracks change a little
    export_int8: str | None = None  # null in older runs
    # (height, width) of the frames of the exported step, multiples of 32, for which the position
    # map is resized; null: model.input_size
    export_input_size: list[int] | None = None  # null in older runs

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query_mode == "strided":
            raise ConfigError(
                "evaluation.query_mode=strided also scores frames before a query, and LBM tracks "
                "forward only: the numbers would mean nothing. Set evaluation.query_mode=first"
            )
        within("evaluation.memory_size", self.memory_size, 1)
        within("evaluation.visible_threshold", self.visible_threshold, 0, 1, above=True, below=True)
        if self.export_cpu_points is not None:
            within("evaluation.export_cpu_points", self.export_cpu_points, 1)
        if self.export_int8 is not None and self.export_cpu_points is None:
            raise ConfigError(
                f"evaluation.export_int8={self.export_int8} has no effect without "
                "evaluation.export_cpu_points: only the step for a CPU has an 8-bit form. Set "
                "evaluation.export_cpu_points=10, the points to expect, or export_int8=null"
            )
        if self.export_input_size is not None:
            key = "evaluation.export_input_size"
            height_width(key, self.export_input_size, least=32, multiple=32)


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING

    def __post_init__(self) -> None:
        if self.evaluation.dataset == HELD_OUT:
            self.data.given_root()
        if self.data.procedural is not None and self.loss.clips_per_mean is None:
            raise ConfigError(
                "data.procedural makes clips on the device, after the counts of the global batch "
                "are taken: set loss.clips_per_mean to a number, such as 4, which needs none"
            )
