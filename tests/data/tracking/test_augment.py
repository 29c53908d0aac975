"""The draws of a clip: within their bounds, all from the generator, none where nothing happens."""

import dataclasses

import numpy as np
import pytest
from augmentation_settings import KUBRIC
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.tracking.augment import AugmentationSettings, draw_plan
from overt.errors import ConfigError
from overt.ops.jitter.operators import OPERATORS

SIZE, CROP, FRAMES = (120, 140), (64, 96), 12
NOTHING = dataclasses.replace(
    KUBRIC,
    erase_probability=0.0,
    jitter_probability=0.0,
    blur_probability=0.0,
    flip_horizontal=0.0,
    flip_vertical=0.0,
)
ALWAYS = dataclasses.replace(
    KUBRIC,
    erase_probability=1.0,
    replace_probability=1.0,
    jitter_probability=1.0,
    blur_probability=1.0,
    flip_horizontal=1.0,
    flip_vertical=1.0,
)


def plan_of(config, seed, frames=FRAMES):
    return draw_plan(frames, SIZE, CROP, config, np.random.default_rng(seed))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_holds_of_every_plan(seed):
    plan = plan_of(ALWAYS, seed)
    assert plan == plan_of(ALWAYS, seed)
    assert plan != plan_of(ALWAYS, seed + 1)
    boxes = [*plan.erased, *(patch.box for patch in plan.patches)]
    for box in boxes:
        assert 1 <= box.frame < FRAMES  # the first frame stays whole
        assert 0 <= box.left <= box.right < SIZE[1]
        assert 0 <= box.top <= box.bottom < SIZE[0]
        assert box.right - box.left <= 100
        assert box.bottom - box.top <= 100
    for list_of_boxes in (plan.erased, [patch.box for patch in plan.patches]):
        counts = np.bincount([box.frame for box in list_of_boxes], minlength=FRAMES)
        assert counts[0] == 0
        assert counts[1:].min() >= 1
        assert counts.max() <= 10
    for patch in plan.patches:
        assert 0 <= patch.frame < FRAMES
        assert 0 <= patch.left <= SIZE[1] - (patch.box.right - patch.box.left)
        assert 0 <= patch.top <= SIZE[0] - (patch.box.bottom - patch.box.top)
    jitters = [*plan.jitter, *(each for pair in plan.patch_jitter for each in pair)]
    assert len(jitters) == 3 * FRAMES
    for jitter in jitters:
        assert sorted(jitter.order) == sorted(OPERATORS)
        for factor in (jitter.brightness, jitter.contrast, jitter.saturation):
            assert 0.8 <= factor <= 1.2
        assert abs(jitter.hue) <= KUBRIC.hue
    assert len(plan.blur_sigma) == FRAMES
    assert 0.1 <= min(plan.blur_sigma) <= max(plan.blur_sigma) <= 2.0
    assert 0 <= min(plan.pad) <= max(plan.pad) < 25
    assert len(plan.sizes) == len(plan.drift_xy) == FRAMES
    for height, width in plan.sizes:
        assert height >= CROP[0] + 10
        assert width >= CROP[1] + 10
    assert plan.drift_xy[0] == (0, 0)
    assert np.abs(plan.drift_xy).max() <= 15
    assert plan.flip_horizontal
    assert plan.flip_vertical


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), limits=st.sampled_from([[0.2, 2.0], [0.9, 1.1], [1.3, 1.4]]))
def test_zoom_keeps_to_its_limits(seed, limits):
    config = dataclasses.replace(KUBRIC, scale_limits=limits, crop_margin=0, scale_drift=0.5)
    plan = draw_plan(20, (1000, 2000), (2, 2), config, np.random.default_rng(seed))
    zoom = np.array(plan.sizes) / plan.padded_size
    assert zoom.min() > limits[0] - 0.002
    assert zoom.max() <= limits[1]


def test_each_step_happens_as_often_as_asked():
    plans = [plan_of(KUBRIC, seed, frames=3) for seed in range(800)]
    assert np.mean([bool(plan.jitter) for plan in plans]) == pytest.approx(0.25, abs=0.05)
    assert np.mean([bool(plan.blur_sigma) for plan in plans]) == pytest.approx(0.25, abs=0.05)
    assert np.mean([plan.flip_horizontal for plan in plans]) == pytest.approx(0.5, abs=0.06)
    assert np.mean([plan.flip_vertical for plan in plans]) == pytest.approx(0.5, abs=0.06)
    erased = [any(box.frame == 1 for box in plan.erased) for plan in plans]
    assert np.mean(erased) == pytest.approx(0.5, abs=0.06)
    assert not any(plan.patches for plan in plans)
    pads = np.array([plan.pad for plan in plans])
    assert pads.min(axis=0).tolist() == [0] * 4
    assert pads.max(axis=0).tolist() == [24] * 4


def test_what_is_switched_off_draws_nothing():
    class Counted:
        def __init__(self):
            self.rng, self.calls = np.random.default_rng(0), []

        def __getattr__(self, name):
            self.calls.append(name)
            return getattr(self.rng, name)

    draws = Counted()
    plan = draw_plan(FRAMES, SIZE, CROP, NOTHING, draws)
    assert plan.erased == plan.patches == plan.jitter == plan.blur_sigma == ()
    assert plan.flip_horizontal is plan.flip_vertical is False
    # Four sides of the border, one zoom, two changes of it and two moves per further frame.
    assert draws.calls == (
        ["integers"] * 4 + ["uniform"] * (1 + 2 * (FRAMES - 1)) + ["integers"] * 2 * (FRAMES - 1)
    )


def test_a_clip_of_one_frame():
    plan = plan_of(ALWAYS, 0, frames=1)
    assert plan.erased == plan.patches == ()
    assert len(plan.sizes) == len(plan.jitter) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"erase_probability": 1.1},
            r"erase_probability=1\.1; it must be at least 0 and at most 1",
        ),
        ({"flip_vertical": -0.1}, r"flip_vertical=-0\.1"),
        ({"hue": 0.6}, r"hue=0\.6"),
        ({"scale": [1.2, 0.8]}, r"scale=\[1\.2, 0\.8\]; give \[lowest, highest\]"),
        ({"blur_sigma": [0.0, 1.0]}, r"blur_sigma=\[0\.0, 1\.0\]"),
        ({"erase_size": [5]}, r"erase_size=\[5\]"),
        ({"erase_size": [5, 5]}, r"erase_size: its end is exclusive"),
        ({"blur_kernel": 10}, r"blur_kernel=10; it must be odd"),
        ({"pad": 0}, r"pad=0; it must be at least 1"),
        ({"scale_drift": -1.0}, r"scale_drift=-1\.0"),
    ],
)
def test_impossible_settings(change, message):
    with pytest.raises(ConfigError, match=r"data\.augmentation\." + message):
        dataclasses.replace(KUBRIC, **change)


def test_every_setting_matters():
    """No option is ignored: changing any of them changes a plan drawn from the same seed."""
    other = AugmentationSettings(
        erase_probability=0.4,
        erase_max=3,
        erase_size=[2, 50],
        replace_probability=0.4,
        replace_max=3,
        replace_size=[2, 50],
        jitter_probability=0.4,
        brightness=0.1,
        contrast=0.1,
        saturation=0.1,
        hue=0.01,
        blur_probability=0.4,
        blur_kernel=5,
        blur_sigma=[0.5, 0.6],
        pad=3,
        scale=[2.0, 2.1],
        scale_drift=0.3,
        scale_limits=[0.95, 1.01],
        crop_margin=30,
        crop_drift=5,
        drift_momentum=0.1,
        flip_horizontal=0.1,
        flip_vertical=0.1,
        exact_points=True,
    )
    base = dataclasses.replace(
        KUBRIC, replace_probability=0.5, jitter_probability=0.5, blur_probability=0.5
    )
    for field in dataclasses.fields(AugmentationSettings):
        changed = dataclasses.replace(base, **{field.name: getattr(other, field.name)})
        assert any(plan_of(base, seed) != plan_of(changed, seed) for seed in range(40)), field.name
