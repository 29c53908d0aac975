"""OpenCV's trackers follow a texture that shifts, and notice where it leaves."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from overt.errors import ConfigError
from overt.metrics import flow_baselines
from overt.metrics.flow_baselines import BASELINES

STEP = (3, -2)  # pixels a frame, x and y


@pytest.fixture(scope="module")
def clip():
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(1, 3, 20, 20, generator=generator)
    large = 255 * F.interpolate(rough, (120, 120), mode="bicubic").clamp(0, 1)[0]
    frames = [
        large[:, 30 - STEP[1] * t : 94 - STEP[1] * t, 30 - STEP[0] * t : 94 - STEP[0] * t]
        for t in range(6)
    ]
    queries = torch.tensor([[0.0, 20, 40], [2.0, 30, 30], [0.0, 61, 30]])
    return SimpleNamespace(video=torch.stack(frames).to(torch.uint8), queries=queries)


@pytest.mark.parametrize("name", BASELINES)
def test_follows_a_shift_both_ways(clip, name):
    pytest.importorskip("cv2")
    tracks, visible = BASELINES[name](clip)
    time = torch.arange(6.0)[:, None, None] - clip.queries[:, 0][None, :, None]
    expected = clip.queries[None, :, 1:] + time * torch.tensor(STEP)
    error = (tracks - expected).norm(dim=-1)
    assert error[:, :2].max() < 1.0
    assert visible[:, :2].all()
    assert not visible[-1, 2]  # it has left the image


def test_without_opencv(clip, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(ConfigError, match=r"overt\[baselines\]"):
        flow_baselines.lucas_kanade(clip)


def test_a_field_between_its_places():
    y, x = np.mgrid[0:4, 0:5].astype(np.float32)
    field = np.stack([x, 10 * y], -1)
    points = np.array([[1.5, 2.25], [9.0, -1.0]], np.float32)
    assert np.allclose(flow_baselines._sampled(field, points), [[1.5, 22.5], [4.0, 0.0]])
