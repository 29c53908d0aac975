"""Initialize the encoder with the first stages of torchvision's ImageNet ResNet-18."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from overt.errors import CheckpointError
from overt.nn.pretrained import read_weights
from overt.recipes.lbm.backbone import Backbone

# Stages of the file and their names in the encoder; the last stage and the classifier are unused.
PREFIXES = {
    "conv1.": "layer1.0.",
    "bn1.": "layer1.1.",
    "layer1.": "layer1.4.",
    "layer2.": "layer2.",
    "layer3.": "layer3.",
}
UNUSED = ("layer4.", "fc.")


def load_resnet(backbone: Backbone, path: Path | str) -> None:
    """Load the stages of the encoder from `model.backbone_weights`, all of them or none."""
    if not Path(path).is_file():
        raise CheckpointError(
            f"model.backbone_weights={path}: no such file. It is torchvision's "
            "resnet18-f37072fd.pth; null starts from random weights."
        )
    tensors = read_weights(path, "model.backbone_weights")
    current = backbone.state_dict()
    stages = {name for name in current if name.startswith(("layer1.", "layer2.", "layer3."))}
    loaded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        old = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
        if old is not None:
            loaded[PREFIXES[old] + name.removeprefix(old)] = tensor
        elif not name.startswith(UNUSED):
            raise CheckpointError(
                f"model.backbone_weights={path}: {name} is not a key of a ResNet-18"
            )
    missing = sorted(name for name in stages - set(loaded) if "num_batches_tracked" not in name)
    extra = sorted(set(loaded) - stages)
    wrong = [name for name in stages & set(loaded) if loaded[name].shape != current[name].shape]
    if missing or extra or wrong:
        raise CheckpointError(
            f"model.backbone_weights={path} does not fit: {len(missing)} keys missing, "
            f"{len(extra)} too many, {len(wrong)} of another shape, such as "
            f"{(missing + extra + sorted(wrong))[0]}. Expected: torchvision's ResNet-18, and "
            "model.backbone_width=64."
        )
    backbone.load_state_dict(loaded, strict=False)
