"""The augmentations against recorded cases, with the recorded draws in place of a generator."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from overt.data.tracking.augment import AugmentationSettings, draw_plan
from overt.data.tracking.augment_apply import erase, move_points, render, resample

# The recorded code wrote OpenCV's resize to float16; gray levels.
PIXEL_TOLERANCE = 0.13

# Color jitter and blur were switched off; a step of probability 0 draws nothing.
SETTINGS = AugmentationSettings(
    erase_probability=0.5,
    erase_max=10,
    erase_size=[2, 100],
    replace_probability=0.0,
    replace_max=10,
    replace_size=[2, 100],
    jitter_probability=0.0,
    brightness=0.2,
    contrast=0.2,
    saturation=0.2,
    hue=0.25 / 3.14,
    blur_probability=0.0,
    blur_kernel=11,
    blur_sigma=[0.1, 2.0],
    pad=25,
    scale=[0.75, 1.25],
    scale_drift=0.05,
    scale_limits=[0.2, 2.0],
    crop_margin=10,
    crop_drift=15,
    drift_momentum=0.8,
    flip_horizontal=0.5,
    flip_vertical=0.5,
    exact_points=False,
)


class RecordedDraws:
    """Hands out recorded draws in their order; another function or other bounds fail."""

    def __init__(self, records: list[list[Any]]) -> None:
        self.records = list(records)

    def random(self) -> float:
        return self.take("rand")

    def integers(self, low: int, high: int) -> int:
        return int(self.take("randint", low, high))

    def uniform(self, low: float, high: float) -> float:
        return self.take("uniform", low, high)

    def take(self, function: str, *bounds: float) -> float:
        recorded_function, recorded_bounds, value = self.records.pop(0)
        assert [recorded_function, recorded_bounds] == [function, list(bounds)]
        return float(value)


def check_augmentations(case: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    frames = tensors["video_in"].permute(0, 3, 1, 2)  # (T, 3, H, W)
    coords = tensors["tracks_in"].transpose(0, 1).numpy()  # (N, T, 2)
    visible = tensors["visible_in"].bool().T.numpy()  # (N, T)

    gates = case["draws_eraser_and_gates"][-2:]  # of color jitter and blur
    assert [gate[0] for gate in gates] == ["rand", "rand"]
    draws = RecordedDraws(case["draws_eraser_and_gates"][:-2] + case["draws_spatial"])
    height, width = frames.shape[2:]
    plan = draw_plan(len(frames), (height, width), tuple(case["crop_size"]), SETTINGS, draws)
    assert not draws.records

    erased = erase(frames, plan.erased)
    expected = tensors["after_eraser.video"].permute(0, 3, 1, 2).short()
    filled = torch.zeros(len(frames), 1, height, width, dtype=torch.bool)
    for box in plan.erased:
        filled[box.frame, :, box.top : box.bottom, box.left : box.right] = True
    difference = (erased.short() - expected).abs()
    assert difference.max() <= 1
    assert difference.masked_fill(filled, 0).max() == 0

    moved = move_points(plan, coords, visible)
    expected_visible = tensors["after_eraser.visible"].bool().T
    assert torch.equal(torch.from_numpy(moved.visible), expected_visible)
    expected_coords = tensors["after_spatial.tracks"].transpose(0, 1)
    torch.testing.assert_close(
        torch.from_numpy(moved.coords_xy), expected_coords, atol=1e-3, rtol=0
    )

    expected_video = tensors["after_spatial.video"].permute(0, 3, 1, 2).float()
    # From the recorded eraser, whose means may differ by one level.
    recorded = tensors["after_eraser.video"].permute(0, 3, 1, 2)
    exact = resample(plan, plan.sizes, moved.corners, recorded)
    torch.testing.assert_close(exact, expected_video, atol=PIXEL_TOLERANCE, rtol=0)
    rounded = render(dataclasses.replace(plan, erased=()), moved.corners, recorded)
    torch.testing.assert_close(rounded.float(), expected_video, atol=0.6, rtol=0)
