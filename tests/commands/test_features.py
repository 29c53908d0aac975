"""`overt features`: the features of images as one file."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from small_recipes import SMALL_HJEPA

from overt.commands.features import main
from overt.errors import ConfigError, DataError
from overt.metrics.features import load_features


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    SMALL_HJEPA.train(folder, "training.num_steps=1", "training.evaluate_every_steps=null")
    return folder


def words(root: Path, output: Path) -> list[str]:
    checkpoint = root / "runs" / "hjepa_tiny" / "checkpoints" / "latest"
    paths = [str(root / "images"), "--checkpoint", str(checkpoint), "--output", str(output)]
    return [*paths, "--batch-size", "8"]


def test_features_of_a_folder(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (root / "images" / "disc_stripes" / "broken.png").write_bytes(b"no image")
    assert (
        main(
            [
                *words(root, tmp_path / "a" / "all.safetensors"),
                "--workers",
                "2",
                "--batch-size",
                "8",
            ]
        )
        == 0
    )
    assert "36 x 32; 1 skipped" in capsys.readouterr().out
    assert main([*words(root, tmp_path / "b.safetensors"), "--workers", "0"]) == 0
    values, labels, names = load_features(tmp_path / "a" / "all.safetensors")
    again, *_ = load_features(tmp_path / "b.safetensors")
    assert values.shape == (36, 32)
    assert torch.equal(values, again)  # whoever reads them
    assert len(set(labels.tolist())) == 4
    assert names[0] == "disc_dots/00000.png"


def test_what_cannot_be_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; name a file"):
        main(words(root, tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--output, its folder=.* is a file; name a new"):
        main(words(root, tmp_path / "file" / "c"))
    with pytest.raises(
        ConfigError, match=r"f\.npy: features are written as .* as .*f\.safetensors"
    ):
        main(words(root, tmp_path / "f.npy"))
    elsewhere = words(root, tmp_path / "c")
    with pytest.raises(DataError):
        main([str(tmp_path / "none"), *elsewhere[1:]])
    with pytest.raises(ConfigError, match="here --unlabeled reads IMAGES without classes"):
        main([*elsewhere, "data.labeled=false"])
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    with pytest.raises(DataError, match=r"outside of any class folder.*`overt features`: --unlab"):
        main([str(tmp_path), *elsewhere[1:]])
    assert main([str(tmp_path), *elsewhere[1:], "--unlabeled", "--workers", "0"]) == 0
    with pytest.raises(ConfigError, match="ImageEncoder in overt"):
        main([*elsewhere, "--recipe", "lbm_tiny"])
