"""Settings of small procedural clips for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import overt
from overt.data.tracking.procedural_settings import ProceduralSettings

FILE = Path(overt.__file__).parent / "conf/scene/procedural.yaml"


def small_settings(**changed: Any) -> ProceduralSettings:
    """The shipped settings for frames of 32 pixels and textures of 32 texels."""
    values = OmegaConf.merge(ProceduralSettings, OmegaConf.load(FILE))
    settings = OmegaConf.to_object(values)
    assert isinstance(settings, ProceduralSettings)
    small = {"texture_size": 32, "made_textures": 3, "layers": 4}
    return replace(settings, **(small | changed))
