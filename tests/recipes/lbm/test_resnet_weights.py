"""overt/recipes/lbm/resnet_weights.py: the encoder starts from torchvision's file."""

from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_LBM

from overt.errors import CheckpointError


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sequences")


def test_the_encoder_starts_from_torchvisions_file(data_root: Path, tmp_path: Path) -> None:
    recipe = SMALL_LBM.recipe(data_root)
    backbone = recipe.build_model().backbone
    file = tmp_path / "resnet18.pth"
    new = {"layer1.0.": "conv1.", "layer1.1.": "bn1.", "layer1.4.": "layer1."}
    content = {"fc.weight": torch.zeros(3, 3), "layer4.0.conv1.weight": torch.zeros(1)}
    for name, value in backbone.state_dict().items():
        if name.startswith("layer"):
            prefix = next((old for old in new if name.startswith(old)), "")
            content[new.get(prefix, "") + name.removeprefix(prefix)] = torch.full_like(value, 2)
    torch.save(content, file)
    loaded = SMALL_LBM.recipe(data_root, f"model.backbone_weights={file}").build_model().backbone
    assert (loaded.layer1[0].weight == 2).all()
    assert (loaded.layer1[4][1].bn2.running_var == 2).all()
    assert (loaded.layer3[0].downsample[0].weight == 2).all()

    del content["layer3.1.conv2.weight"]
    torch.save(content, file)
    with pytest.raises(CheckpointError, match=r"1 keys missing.*layer3\.1\.conv2\.weight"):
        SMALL_LBM.recipe(data_root, f"model.backbone_weights={file}").build_model()
    torch.save({"model.conv1.weight": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match=r"model\.conv1\.weight is not a key of a ResNet-18"):
        SMALL_LBM.recipe(data_root, f"model.backbone_weights={file}").build_model()
    with pytest.raises(CheckpointError, match="no such file"):
        SMALL_LBM.recipe(data_root, "model.backbone_weights=nowhere.pth").build_model()
