"""Every key of the recipe: name, type and meaning. Values live in `conf/recipe/*.yaml`.

This file does not import torch, so that a mistyped key is refused at once.
"""

from dataclasses import dataclass

from omegaconf import MISSING

from overt.errors import ConfigError


@dataclass
class ModelSettings:
    # channels of the first convolution; the second and third have two and four times as many
    width: int = MISSING

    def __post_init__(self) -> None:
        if self.width % 4:
            raise ConfigError(f"model.width={self.width} is not a multiple of 4, for the norms")


@dataclass
class DataSettings:
    # drawings of one epoch; every epoch draws new ones
    samples: int = MISSING
    # height and width of a drawing in pixels
    size: int = MISSING
    # standard deviation of the noise on every pixel, where black is 0 and white is 1
    noise: float = MISSING


@dataclass
class LossSettings:
    # share of the target that is spread over all classes
    label_smoothing: float = MISSING


@dataclass
class EvaluationSettings:
    # held-out drawings that are scored
    samples: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING


@dataclass
class FocalLossSettings(LossSettings):
    # how much less a drawing counts that is already recognized; 0 is plain cross-entropy
    gamma: float = MISSING


@dataclass
class FocalSettings(Settings):
    loss: FocalLossSettings = MISSING


@dataclass
class SharpnessLossSettings(LossSettings):
    # how far the weights are moved uphill before the gradient is taken
    radius: float = MISSING


@dataclass
class SharpnessSettings(Settings):
    loss: SharpnessLossSettings = MISSING
