"""The numbers of CoTracker3's training on Kubric, for tests."""

from pathlib import Path

from omegaconf import OmegaConf

import overt
from overt.data.tracking.augment import AugmentationSettings

_YAML = Path(overt.__file__).parent / "conf" / "data" / "kubric.yaml"
KUBRIC = AugmentationSettings(**OmegaConf.to_container(OmegaConf.load(_YAML))["augmentation"])
