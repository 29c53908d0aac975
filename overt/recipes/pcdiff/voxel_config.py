"""Settings of the second stage, from points to volumes; the values are in the YAML files.

This file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, within
from overt.errors import ConfigError
from overt.recipes.pcdiff.config import DataSettings


@dataclass
class VoxelModelSettings:
    # channels of all layers; a multiple of 8
    width: int = MISSING
    # cells along a side of the grid of point features
    grid: int = MISSING
    # levels of the U-Net over the cells
    levels: int = MISSING
    # displaced copies of each point
    offsets: int = MISSING
    # nodes along a side of the field
    side: int = MISSING
    # smoothing width of the field, sigma / pi nodes
    sigma: float = MISSING

    def __post_init__(self) -> None:
        each_within("model", self, ("width", "grid", "levels", "offsets"), 1)
        within("model.side", self.side, 4)
        within("model.sigma", self.sigma, 0, above=True)
        check_unet(self.width, self.levels, "model.grid", self.grid)


def check_unet(width: int, levels: int, name: str, cells: int) -> None:
    """Reject widths that have no groups, and grids (named `name`) that cannot be halved."""
    if width % 8:
        raise ConfigError(f"model.width={width} is normalized in 8 groups; use a multiple of 8")
    if cells % 2 ** (levels - 1):
        raise ConfigError(
            f"{name}={cells} is halved {levels - 1} times by model.levels={levels}; use a multiple "
            f"of {2 ** (levels - 1)}"
        )


@dataclass
class VoxelEvaluationSettings:
    # number of scored skulls, evenly spaced in the test list; null: all
    cases: int | None = MISSING
    # fields computed at a time
    batch_size: int = MISSING
    # seed of the points sampled from the skulls
    seed: int = MISSING
    # radius in mm of the ball that turns the same points into a solid, for comparison
    solid_mm: float = MISSING
    # distance to the skull for border Dice, in mm
    border_mm: float = MISSING

    def __post_init__(self) -> None:
        each_within("evaluation", self, ("cases", "batch_size"), 1)
        within("evaluation.seed", self.seed, 0)
        each_within("evaluation", self, ("solid_mm", "border_mm"), 0, above=True)


@dataclass
class VoxelSettings:
    model: VoxelModelSettings = MISSING
    data: DataSettings = MISSING
    evaluation: VoxelEvaluationSettings = MISSING

    def __post_init__(self) -> None:
        if self.data.close_ups is not None:
            raise ConfigError(
                "data.close_ups is for sampling points; the second stage needs whole skulls. Set "
                "data.close_ups=null"
            )
