"""Settings of the refinement, from points and bone to volumes; the values are in the YAML files.

This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, within
from overt.errors import ConfigError
from overt.recipes.pcdiff.config import DataSettings
from overt.recipes.pcdiff.voxel_config import VoxelEvaluationSettings, check_unet


@dataclass
class RefineModelSettings:
    # channels of the first level, doubled at each level below; a multiple of 8
    width: int = MISSING
    # levels of the U-Net
    levels: int = MISSING
    # nodes along a side of the cube around the implant
    side: int = MISSING
    # distance between two nodes, in mm
    spacing_mm: float = MISSING
    # the mirror image of the skull is an input; false: an empty one
    mirrored: bool = MISSING

    def __post_init__(self) -> None:
        each_within("model", self, ("width", "levels", "side"), 1)
        within("model.spacing_mm", self.spacing_mm, 0, above=True)
        check_unet(self.width, self.levels, "model.side", self.side)


@dataclass
class ErrorSettings:
    """What is wrong with the points that training shows, since sampled ones are not exact either.

    Moves are of true points; each sample takes its own fractions of them, between 0 and 1.
    """

    # fraction of the samples that show points of a trained model instead of moved ones; they are
    # written by `overt data implants`
    sampled: float = MISSING
    # standard deviation of a move of all points, along each axis
    shift_mm: float = MISSING
    # amplitude of moves that differ from place to place
    bend_mm: float = MISSING
    # standard deviation of a move of each point, along each axis
    noise_mm: float = MISSING
    # fraction of the samples that show no points at all
    lost: float = MISSING
    # the distance of the nodes varies by this fraction, so that heads have more sizes
    scale: float = MISSING

    def __post_init__(self) -> None:
        each_within("data.errors", self, ("shift_mm", "bend_mm", "noise_mm"), 0)
        each_within("data.errors", self, ("sampled", "lost"), 0, 1)
        within("data.errors.scale", self.scale, 0, 1, below=True)


@dataclass
class RefineDataSettings(DataSettings):
    errors: ErrorSettings = MISSING


@dataclass
class RefineSettings:
    model: RefineModelSettings = MISSING
    data: RefineDataSettings = MISSING
    evaluation: VoxelEvaluationSettings = MISSING

    def __post_init__(self) -> None:
        if self.data.close_ups is not None:
            raise ConfigError(
                "data.close_ups is for sampling points; the refinement always sees the cube of "
                "model.side nodes. Set data.close_ups=null"
            )
        if self.data.axes is not None and self.data.axes[0].upper() not in "LR":
            raise ConfigError(
                f"data.axes={self.data.axes}, but the refinement mirrors skulls along their first "
                "axis; store them with the first axis to the left or right, such as LPS or RAS"
            )
