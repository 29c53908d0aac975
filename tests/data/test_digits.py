"""The digits on disk, in both forms, are the same images."""

import digits
import pytest
import torch

from overt.data.image_arrays import ImageArrays
from overt.data.image_folder import ImageFolder
from overt.metrics.features import knn_accuracy

pytest.importorskip("sklearn")


def test_archives_and_folders_hold_the_same_digits(tmp_path):
    archives = [ImageArrays(path) for path in digits.write_digits_archives(tmp_path)]
    folders = [ImageFolder(root) for root in digits.write_digits_folders(tmp_path)]
    assert [len(images) for images in archives] == [len(images) for images in folders]
    assert sum(map(len, archives)) == 1797
    for archive, folder in zip(archives, folders, strict=True):
        assert archive.classes == folder.classes == tuple("0123456789")
        both = [
            [images.read(index) for index in range(len(images))] for images in (archive, folder)
        ]
        seen = [sorted((label, image.numpy().tobytes()) for image, label in one) for one in both]
        assert seen[0] == seen[1]


def test_pixels_score_what_is_known_of_them(tmp_path):
    """About 98 % of the held-out third: whoever breaks k-NN, labels or split sees it here."""
    train, test = (ImageArrays(path) for path in digits.write_digits_archives(tmp_path))

    def pixels(images: ImageArrays) -> torch.Tensor:
        return images.images[..., 0].flatten(1).float()

    score = knn_accuracy(
        pixels(train), torch.from_numpy(train.labels), pixels(test), torch.from_numpy(test.labels)
    )
    assert 0.97 < score < 0.995
