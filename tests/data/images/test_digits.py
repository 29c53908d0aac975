"""scikit-learn's digits on disk: whole, apart, and as hard as they are known to be."""

from pathlib import Path

import numpy as np
import pytest
import torch

from overt.commands.data import main
from overt.data.images.arrays import ImageArrays
from overt.data.images.digits import load_digits, split_thirds, write_digits
from overt.errors import DataError
from overt.metrics.features import knn_accuracy


def test_without_scikit_learn_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'overt\[digits\]'"):
        load_digits()


def test_archives_hold_every_digit_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert main(["digits", str(tmp_path), "--size", "16"]) == 0
    assert "digits of 16x16 pixels" in capsys.readouterr().out
    sets = [ImageArrays(tmp_path / name) for name in ("train.npz", "test.npz")]
    assert [len(images) for images in sets] == [1198, 599]
    for images in sets:
        assert images.classes == tuple("0123456789")
        assert images.images.shape[1:] == (16, 16, 3)
    images, labels = load_digits(16)
    chosen = np.concatenate(split_thirds(1797))
    assert np.array_equal(np.sort(chosen), np.arange(1797))
    assert np.array_equal(np.concatenate([x.labels for x in sets]), labels[chosen])
    assert np.array_equal(np.concatenate([x.images[..., 0] for x in sets]), images[chosen])


def test_pixels_score_what_is_known_of_them(tmp_path: Path) -> None:
    """About 98 % of the held-out third: whoever breaks k-NN, labels or split sees it here."""
    pytest.importorskip("sklearn")
    train, test = (ImageArrays(path) for path in write_digits(tmp_path))

    def pixels(images: ImageArrays) -> torch.Tensor:
        return images.images[..., 0].flatten(1).float()

    score = knn_accuracy(
        pixels(train), torch.from_numpy(train.labels), pixels(test), torch.from_numpy(test.labels)
    )
    assert 0.97 < score < 0.995
