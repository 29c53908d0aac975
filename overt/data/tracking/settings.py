"""Settings shared by point trackers: the sequences they read and the videos they are scored on.

Names, types and checks; the values are in the YAML files. This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from overt.checks import each_within, height_width, one_of, within
from overt.data.tracking.augment import AugmentationSettings
from overt.data.tracking.procedural_settings import BLOCK, MOST_POINTS, ProceduralSettings
from overt.errors import ConfigError

HELD_OUT = "kubric_held_out"
TAPVID = ("tapvid_davis", "tapvid_kinetics", "tapvid_rgb_stacking", "tapvid_robotap")
DYNAMIC_REPLICA, POINT_ODYSSEY = "dynamic_replica", "point_odyssey"
ANNOTATED = (DYNAMIC_REPLICA, POINT_ODYSSEY)


@dataclass
class SyntheticSettings:
    # sequences of textured shapes over a moving background, in Kubric's layout
    count: int = MISSING
    # frames of a sequence
    frames: int = MISSING
    # height of a frame in pixels; data.crop_size is cropped from it
    height: int = MISSING
    # width of a frame in pixels
    width: int = MISSING
    # tracked points per sequence
    points: int = MISSING
    # random seed of the sequences, independent of the run's
    seed: int = MISSING
    # moving shapes per sequence
    shapes: int = MISSING
    # highest speed of a shape, in pixels per frame; that of the background is 0.4 of it
    speed: float = MISSING

    def __post_init__(self) -> None:
        section = "data.synthetic"
        each_within(section, self, ("count", "frames", "height", "width", "points"), 1)
        each_within(section, self, ("seed", "shapes", "speed"), 0)


@dataclass
class KubricSettings:
    """The part of `data` that does not depend on how a recipe samples its clips."""

    # folder with one subfolder per sequence: SEQ/frames/*.png and SEQ/SEQ.npy, or with one file
    # SEQ.npz each, as written by `overt data pack`; null if neither training nor evaluation reads
    # it
    root: str | None = MISSING
    # synthetic sequences written to root before training; null: the data exist
    synthetic: SyntheticSettings | None = MISSING
    # (height, width) of the crop of every frame
    crop_size: list[int] = MISSING
    # sequences at the start of the sorted list kept out of training, used for evaluation
    held_out: int = MISSING
    # jitter colors, zoom, crop and flip training clips according to `augmentation`; false: only
    # crop
    augment: bool = MISSING
    # augment frames on the training device, which is faster on a GPU; false: in the loader
    # processes. The clips are the same up to rounding
    augment_on_device: bool = False
    augmentation: AugmentationSettings = MISSING
    # clips rendered on the training device instead of read from `root`; null: read
    procedural: ProceduralSettings | None = None
    # procedural clips: folder of photographs used as textures; null: computed textures only
    textures: str | None = None

    def __post_init__(self) -> None:
        height_width("data.crop_size", self.crop_size)
        within("data.held_out", self.held_out, 0)
        if self.procedural is None and self.textures is not None:
            raise ConfigError(
                f"data.textures={self.textures} has no effect on clips that are read: choose "
                "data=procedural, or data=lbm_procedural for LBM"
            )
        if self.procedural is not None and self.augment:
            raise ConfigError(
                "data.augment=true has no effect on procedural clips, which are augmented as they "
                "are rendered; set data.augment=false"
            )
        if self.procedural is not None and any(side % BLOCK for side in self.crop_size):
            raise ConfigError(
                f"data.crop_size={list(self.crop_size)}: procedural clips are compressed in "
                f"squares of {BLOCK} pixels; choose multiples of {BLOCK}"
            )

    def check_rendered_points(self, key: str, points: int) -> None:
        """Reject more points, set by `key`, than a procedural clip has random numbers for."""
        if self.procedural is not None:
            within(key, points, 1, MOST_POINTS)

    def given_root(self) -> str:
        """Return the folder of sequences; raise an error if none is given."""
        if self.root is None:
            raise ConfigError(
                "these keys have no value yet: data.root; add data.root=FOLDER, where FOLDER has "
                "one subfolder or one packed file per sequence"
            )
        return self.root


SUPPORT = ("random", "grid", "none")


@dataclass
class TeacherSettings:
    """A trained tracker that labels clips, and how its labels are used."""

    # student, the weights that training starts from; small or tiny, the shipped trackers; a
    # checkpoint of overt, or a released .pth of CoTracker3; or an exported tracker, .onnx or
    # .torchscript (its inputs and outputs: `overt docs tracking`)
    source: str = MISSING
    # recipe of a file that does not name it
    recipe: str | None = None
    # a point is visible above this probability
    visible_threshold: float = 0.9
    # also learn positions that the teacher predicts as occluded
    occluded_positions: bool = True
    # learn frames before the query; null: if the tracker tracks backward
    tracks_backward: bool | None = None
    # support points besides the queries: random (in all frames), grid (5 x 5 in the first frame) or
    # none; null: as the tracker was trained
    support: str | None = None
    # exported trackers: (height, width) to which clips are resized; null: not resized
    resolution: list[int] | None = None


@dataclass
class UnlabeledSettings:
    """Clips of videos that trained trackers label."""

    # one of these is sampled for each clip
    teachers: list[TeacherSettings] = MISSING
    # the weights that training starts from, checkpoint.init_from; the word random: train from
    # random weights on purpose. A teacher's source `student` is this file
    student: str | None = None
    # frames in which corners are detected, sampled with replacement
    query_frames: int = 8
    # fraction of the clip, from its start, that these frames come from
    query_fraction: float = 0.25
    # the number of frames between two frames of a clip is below this
    largest_stride: int = 4
    # random points that teachers with support=random track in addition to the queries
    random_support: int = 100

    def __post_init__(self) -> None:
        if not self.teachers:
            raise ConfigError(
                "data.unlabeled.teachers=[] leaves no teacher to label clips; give a list such as "
                "[{source: small}]"
            )
        for index, teacher in enumerate(self.teachers):
            key = f"data.unlabeled.teachers[{index}]"
            within(f"{key}.visible_threshold", teacher.visible_threshold, 0, 1)
            if teacher.support is not None:
                one_of(f"{key}.support", teacher.support, SUPPORT)
            if teacher.resolution is not None:
                height_width(f"{key}.resolution", teacher.resolution)
        within("data.unlabeled.query_fraction", self.query_fraction, 0, 1)
        each_within("data.unlabeled", self, ("query_frames", "largest_stride"), 1)
        within("data.unlabeled.random_support", self.random_support, 0)


@dataclass
class ScoringSettings:
    """The part of `evaluation` that does not depend on how a recipe runs its model."""

    # what is scored: kubric_held_out, the first data.held_out sequences of data.root; or the videos
    # of tapvid_davis, tapvid_kinetics, tapvid_rgb_stacking, tapvid_robotap, dynamic_replica (its
    # split valid) or point_odyssey (its split test)
    dataset: str = MISSING
    # folder with the files as published; null: kubric_held_out
    dataset_root: str | None = MISSING
    # except TAP-Vid: points of each sequence that are tracked and scored
    points_per_sequence: int = MISSING
    # except TAP-Vid: frames of each sequence, from its first; for Dynamic Replica, of each clip
    frames: int = MISSING
    # TAP-Vid: a query for each track where it is first visible (first), or in every fifth frame
    # that shows it (strided)
    query_mode: str = MISSING
    # TAP-Vid: a fixed subset of 50 videos of Kinetics and RoboTAP, none with more than 300 frames
    fast: bool = MISSING
    # further sets by name, each with the keys of this section that differ: {point_odyssey:
    # {dataset_root: data/odyssey, frames: 300}}; `dataset` defaults to the name. Scores are named
    # NAME/SCORE, and training.evaluate_sets sets how often they are computed
    also: dict[str, Any] | None = None  # null: none

    def __post_init__(self) -> None:
        one_of("evaluation.dataset", self.dataset, (HELD_OUT, *TAPVID, *ANNOTATED))
        one_of("evaluation.query_mode", self.query_mode, ("first", "strided"))
        self.further_sets()
        if self.dataset in ANNOTATED and self.query_mode == "strided":
            raise ConfigError(
                f"evaluation.dataset={self.dataset} is scored from its first frame on; set "
                "evaluation.query_mode=first"
            )
        if self.dataset != HELD_OUT and self.dataset_root is None:
            raise ConfigError(
                f"evaluation.dataset={self.dataset} needs evaluation.dataset_root=FOLDER: the one "
                f"that holds the folder {self.dataset}"
            )
        each_within("evaluation", self, ("points_per_sequence", "frames"), 1)

    def further_sets(self) -> dict[str, Self]:
        """Return the settings of every set in `also`, by its name; reject invalid ones."""
        sets = {}
        for name, changes in (self.also or {}).items():
            allowed = {field.name for field in fields(self)} - {"also"}
            if not isinstance(changes, dict) or not set(changes) <= allowed:
                raise ConfigError(
                    f"evaluation.also.{name}={changes}; expected keys of the section evaluation, "
                    f"such as dataset_root; allowed: {', '.join(sorted(allowed))}"
                )
            values: dict[str, Any] = {"dataset": name, "also": None, **changes}
            try:
                # In the types of the fields, as the keys of the section itself are.
                typed = OmegaConf.to_container(OmegaConf.merge(type(self), values))
                assert isinstance(typed, dict)
                sets[name] = replace(self, **{key: typed[key] for key in values})
            except ConfigError as error:
                raise ConfigError(f"evaluation.also.{name}: {error}") from None
            except (OmegaConfBaseException, OverflowError) as error:
                key = getattr(error, "full_key", None)
                reason = str(error).splitlines()[0]
                raise ConfigError(
                    f"evaluation.also.{name}{f'.{key}' if key else ''}: {reason}"
                ) from None
        return sets
