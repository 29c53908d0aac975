"""An encoder for other runtimes gives the features that are scored here."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_HJEPA, first_batch

from overt.cli import main
from overt.recipes.hjepa.evaluation import pooled_features


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.mark.parametrize("target", ["torchscript", "onnx"])
def test_other_runtimes_give_the_same_features(target: str, root: Path, tmp_path: Path) -> None:
    if target == "onnx" and importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("needs the extra onnx")
    recipe = SMALL_HJEPA.recipe(root)
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    torch.save(model.state_dict(), tmp_path / "hjepa.pth")
    words = ["ckpt", "export", str(tmp_path / "hjepa.pth"), "--to", target]
    words += ["--output", str(tmp_path / "encoder"), "--recipe", "hjepa_tiny"]
    for word in (*SMALL_HJEPA.sizes("model", "data"), "training.device=cpu"):
        words += ["--set", word]
    assert main(words) == 0
    images = first_batch(recipe, 3).images
    with torch.no_grad():
        pooled, patches = pooled_features(model, 1, images), model.extract_features(images)
    if target == "torchscript":
        found = torch.jit.load(tmp_path / "encoder")(images.float())
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(
            tmp_path / "encoder", providers=["CPUExecutionProvider"]
        )
        found = session.run(None, {"images": images.float().numpy()})
    for part, expected in zip(found, (pooled, patches), strict=True):
        np.testing.assert_allclose(np.asarray(part), expected.numpy(), atol=1e-4)
