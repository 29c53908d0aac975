"""Classes of patches from masks, labelers, and the mean intersection over union."""

import math

import pytest
import torch

from overt.metrics.dense import (
    IGNORED,
    KNearest,
    Majority,
    confusion,
    mean_iou,
    patch_classes,
    spread_patches,
)


def test_a_patch_has_the_class_of_most_of_its_labeled_pixels():
    mask = torch.tensor([[3, 3, 1, IGNORED], [3, 0, IGNORED, IGNORED]])[None]
    assert patch_classes(mask, 2).tolist() == [[3, 1]]  # one labeled pixel is enough
    assert patch_classes(torch.full((1, 2, 2), IGNORED), 2).tolist() == [[IGNORED]]


@pytest.mark.parametrize("batch", [1, 4])
def test_patches_of_a_batch_are_those_of_its_masks(batch):
    maps = torch.arange(batch * 6).view(batch, 6)
    spread = spread_patches(maps, (2, 3), 2)
    assert spread.shape == (batch, 4, 6)
    assert torch.equal(patch_classes(spread, 2), maps)
    masks = torch.randint(0, 4, (batch, 4, 6))
    alone = torch.cat([patch_classes(mask[None], 2) for mask in masks])
    assert torch.equal(patch_classes(masks, 2), alone)


def test_neighbors_and_the_majority_name_classes():
    bank = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 2.0]])
    labels = torch.tensor([4, 4, 7])
    queries = torch.tensor([[5.0, 0.1], [0.1, 0.2]])
    assert KNearest(bank, labels, 1, 0.07).predict(queries).tolist() == [4, 7]
    assert KNearest(bank, labels, 20, 0.07).predict(queries).tolist() == [4, 7]
    assert Majority(labels).predict(queries).tolist() == [4, 4]


def test_the_mean_iou_by_hand():
    truth = torch.tensor([0, 0, 0, 1, 1, IGNORED])
    predicted = torch.tensor([0, 0, 1, 1, 2, 2])
    # Class 0: 2 of 3; class 1: 1 of 3; class 2: 0 of 1, never true, but predicted.
    assert mean_iou(confusion(predicted, truth)) == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert mean_iou(confusion(truth, truth)) == 1
    assert math.isnan(mean_iou(torch.zeros(3, 3)))
