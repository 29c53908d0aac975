"""Settings of the toy recipe, with switches that provoke what can go wrong."""

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass
class ModelSettings:
    width: int = MISSING
    dropout: float = MISSING
    # adds a layer that no loss reaches
    idle_layer: bool = MISSING


@dataclass
class DataSettings:
    samples: int = MISSING
    # index of a sample whose values are NaN
    nan_sample: int | None = MISSING
    # index of a sample that cannot be read
    broken_sample: int | None = MISSING


@dataclass
class LossSettings:
    scale: float = MISSING


@dataclass
class EvaluationSettings:
    samples: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING
    loss: LossSettings = MISSING
    evaluation: EvaluationSettings = MISSING
