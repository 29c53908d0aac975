"""overt/ops/jitter/plain.py against Pillow."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from overt.ops.jitter.operators import OPERATORS, Jitter
from overt.ops.jitter.plain import jitter_frame

UNCHANGED = Jitter(OPERATORS, 1.0, 1.0, 1.0, 0.0)
ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}


def noise(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (3, 70, 90), generator=generator, dtype=torch.uint8)


def as_pillow(frame):
    return Image.fromarray(frame.permute(1, 2, 0).numpy())


def from_pillow(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 100),
    factor=st.floats(0.5, 1.625, width=32),
    operator=st.sampled_from(list(ENHANCERS)),
)
def test_enhancements_are_those_of_pillow(seed, factor, operator):
    """To the bit, but for results next to an integer.

    Here the product is rounded before the sum. In Pillow that depends on its compiler: on ARM it
    takes a fused instruction, which rounds once.
    """
    frame = noise(seed)
    enhancer = ENHANCERS[operator](as_pillow(frame))
    expected = from_pillow(enhancer.enhance(factor)).int()
    ours = jitter_frame(frame, UNCHANGED._replace(order=(operator,), **{operator: factor})).int()
    base = from_pillow(enhancer.degenerate).double()
    rounded_once = (base + factor * (frame.double() - base)).float()
    fused = rounded_once.clamp(0, 255).floor().int()
    assert ((expected == ours) | (expected == fused)).all()
    assert (ours - fused).abs().max() <= 1


@pytest.mark.parametrize("turn", [-0.2, -0.05, 0.0, 0.08, 0.45])
def test_hue_turns_like_pillow_but_for_its_eight_bits(turn):
    frame = noise()
    hue, saturation, value = as_pillow(frame).convert("HSV").split()
    turned = (np.array(hue).astype(int) + round(turn * 255)) % 256
    channels = [Image.fromarray(turned.astype(np.uint8)), saturation, value]
    expected = from_pillow(Image.merge("HSV", channels).convert("RGB")).int()
    ours = jitter_frame(frame, UNCHANGED._replace(order=("hue",), hue=turn)).int()
    assert (ours - expected).abs().double().mean() < 2.5
    assert torch.equal(ours.amax(0), frame.int().amax(0))
    assert torch.equal(ours.amin(0), frame.int().amin(0))


def test_a_third_of_the_circle_moves_the_channels():
    frame = noise()
    ours = jitter_frame(frame, UNCHANGED._replace(order=("hue",), hue=1 / 3))
    assert (ours.int() - frame[[2, 0, 1]].int()).abs().max() <= 1


def test_order_of_the_operators_matters():
    frame = noise()
    strong = Jitter(("contrast", "brightness"), 1.2, 1.2, 1.0, 0.0)
    other = strong._replace(order=("brightness", "contrast"))
    assert not torch.equal(jitter_frame(frame, strong), jitter_frame(frame, other))


def test_gray_stays_gray():
    frame = noise()[:1].expand(3, -1, -1)
    turned = jitter_frame(frame, UNCHANGED._replace(order=("hue", "saturation"), hue=0.3))
    assert torch.equal(turned, frame)
