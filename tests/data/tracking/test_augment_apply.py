"""Plans applied: tracks move with the pixels, nothing planned changes nothing, Pillow agrees."""

import dataclasses

import numpy as np
import pytest
import torch
from augmentation_settings import KUBRIC
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from overt.data.tracking.augment import Box, Pad, Patch, Plan, draw_plan
from overt.data.tracking.augment_apply import (
    blur,
    erase,
    move_points,
    render,
    replace,
    resample,
)
from overt.errors import DataError
from overt.ops.jitter.api import jitter
from overt.ops.jitter.operators import OPERATORS, Jitter
from overt.ops.jitter.plain import jitter_frame

HEIGHT, WIDTH, FRAMES = 70, 90, 4
GEOMETRY = dataclasses.replace(
    KUBRIC,
    erase_probability=0.0,
    jitter_probability=0.0,
    blur_probability=0.0,
    exact_points=True,
)
STILL = Plan(
    frame_size=(HEIGHT, WIDTH),
    crop_size=(HEIGHT, WIDTH),
    erased=(),
    patch_jitter=(),
    patches=(),
    jitter=(),
    blur_kernel=11,
    blur_sigma=(),
    pad=Pad(0, 0, 0, 0),
    sizes=((HEIGHT, WIDTH),) * FRAMES,
    drift_xy=((0, 0),) * FRAMES,
    flip_horizontal=False,
    flip_vertical=False,
    exact_points=False,
)
UNCHANGED = Jitter(OPERATORS, 1.0, 1.0, 1.0, 0.0)


def noise(frames=FRAMES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (frames, 3, HEIGHT, WIDTH), generator=generator, dtype=torch.uint8)


def random_points(count=50, seed=0):
    rng = np.random.default_rng(seed)
    coords = rng.uniform(0, 1, (count, FRAMES, 2)) * (WIDTH - 1, HEIGHT - 1)
    return coords.astype(np.float32), rng.random((count, FRAMES)) < 0.8


def blobs(coords):
    """Frames with one bright spot each, at (x, y)."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    offset = np.stack([x, y], axis=-1) - coords[:, None, None]  # (T, H, W, 2)
    spot = 255 * np.exp(-(offset**2).sum(axis=-1) / (2 * 3.0**2))
    return torch.from_numpy(spot.round().astype(np.uint8))[:, None].expand(-1, 3, -1, -1)


def centroids(frames):
    weight = frames[:, 0].double()
    y, x = torch.meshgrid(*(torch.arange(n).double() for n in weight.shape[1:]), indexing="ij")
    places = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], dim=-1)
    return (places / weight.sum((1, 2))[:, None]).numpy()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), exact=st.booleans())
def test_a_track_moves_with_its_pixels(seed, exact):
    config = dataclasses.replace(GEOMETRY, exact_points=exact, scale=[1.0, 1.2], crop_drift=3)
    plan = draw_plan(FRAMES, (HEIGHT, WIDTH), (56, 60), config, np.random.default_rng(seed))
    coords = np.array([[[45, 35], [43.5, 36], [47.2, 33.1], [48, 37]]], np.float32)  # (1, T, 2)
    moved = move_points(plan, coords, np.ones((1, FRAMES), bool))
    assert moved.visible.all()
    frames = render(plan, moved.corners, blobs(coords[0]))
    assert frames.shape == (FRAMES, 3, 56, 60)
    # The released arithmetic is off by a pixel where it mirrors and half of one where it zooms.
    tolerance = (
        np.full(2, 0.25) if exact else 0.75 + np.array([plan.flip_horizontal, plan.flip_vertical])
    )
    assert (np.abs(centroids(frames) - moved.coords_xy[0]) < tolerance).all()


@pytest.mark.parametrize("exact", [True, False])
def test_nothing_planned_changes_nothing(exact):
    plan = dataclasses.replace(STILL, exact_points=exact)
    coords, visible = random_points()
    moved = move_points(plan, coords, visible)
    np.testing.assert_allclose(moved.coords_xy, coords, atol=1e-5)
    np.testing.assert_array_equal(moved.visible, visible)
    assert not moved.corners.any()
    assert torch.equal(render(plan, moved.corners, noise()), noise())


def test_identity_of_colors_and_small_blur():
    frames = noise()
    assert (jitter(frames, [UNCHANGED] * FRAMES).int() - frames.int()).abs().max() <= 1
    assert torch.equal(blur(frames, 11, [0.1] * FRAMES), frames)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), frames=st.integers(1, 9))
def test_frames_at_once_are_those_one_by_one(seed, frames):
    """What a GPU does, many frames for the launches of one, is what a CPU does."""
    config = dataclasses.replace(KUBRIC, jitter_probability=1.0, blur_probability=1.0)
    plan = draw_plan(frames, (HEIGHT, WIDTH), (56, 60), config, np.random.default_rng(seed))
    corners = np.random.default_rng(seed).integers(0, 9, (frames, 2))
    clip = noise(frames, seed)
    at_once = [
        jitter(clip, plan.jitter),
        blur(clip, plan.blur_kernel, plan.blur_sigma),
        resample(plan, plan.sizes, corners, clip),
    ]
    for number in range(frames):
        part = slice(number, number + 1)
        one = [
            jitter(clip[part], plan.jitter[part]),
            blur(clip[part], plan.blur_kernel, plan.blur_sigma[part]),
            resample(plan, plan.sizes[part], corners[part], clip[part]),
        ]
        for many, single in zip(at_once, one, strict=True):
            assert torch.equal(many[part], single)


def test_given_frames_are_not_written_to():
    config = dataclasses.replace(
        KUBRIC,
        erase_probability=1.0,
        replace_probability=1.0,
        jitter_probability=1.0,
        blur_probability=1.0,
    )
    frames, (coords, visible) = noise(), random_points()
    given_coords, given_visible = coords.copy(), visible.copy()
    plan = draw_plan(FRAMES, (HEIGHT, WIDTH), (56, 60), config, np.random.default_rng(0))
    moved = move_points(plan, coords, visible)
    render(plan, moved.corners, frames)
    assert torch.equal(frames, noise())
    np.testing.assert_array_equal(coords, given_coords)
    np.testing.assert_array_equal(visible, given_visible)


def test_mirrors_are_the_mirrored_frames():
    frames, corners = noise(), np.zeros((FRAMES, 2), np.int64)
    plan = dataclasses.replace(STILL, flip_horizontal=True)
    assert torch.equal(render(plan, corners, frames), frames.flip(3))
    plan = dataclasses.replace(STILL, flip_vertical=True)
    assert torch.equal(render(plan, corners, frames), frames.flip(2))


@pytest.mark.parametrize(("exact", "x", "y"), [(False, 90 - 10, 70 - 20), (True, 79, 49)])
def test_released_and_exact_mirror(exact, x, y):
    plan = dataclasses.replace(STILL, flip_horizontal=True, flip_vertical=True, exact_points=exact)
    coords = np.full((1, FRAMES, 2), (10, 20), np.float32)
    moved = move_points(plan, coords, np.ones((1, FRAMES), bool))
    np.testing.assert_allclose(moved.coords_xy[0], [(x, y)] * FRAMES, atol=1e-5)


def test_border_is_black_and_shifts_points():
    plan = dataclasses.replace(
        STILL, pad=Pad(3, 5, 2, 4), crop_size=(76, 98), sizes=((76, 98),) * FRAMES
    )
    coords, visible = random_points()
    moved = move_points(plan, coords, visible)
    np.testing.assert_allclose(moved.coords_xy, coords + np.float32([3, 2]), atol=1e-4)
    frames = render(plan, moved.corners, noise())
    assert torch.equal(frames[:, :, 2:72, 3:93], noise())
    assert frames.int().sum() == noise().int().sum()


def test_crop_follows_the_points_seen_first_and_drifts():
    plan = dataclasses.replace(
        STILL, crop_size=(20, 30), drift_xy=((0, 0), (4, -3), (-90, 2), (1, 1))
    )
    coords = np.zeros((3, FRAMES, 2), np.float32)
    coords[:, 0] = [(40, 30), (50.9, 35), (89, 69)]
    visible = np.ones((3, FRAMES), bool)
    visible[2, 0] = False  # not seen at first: does not count
    moved = move_points(plan, coords, visible)
    assert moved.corners.tolist() == [[30, 22], [34, 19], [0, 21], [1, 22]]
    frames = render(plan, moved.corners, noise())
    for number, (left, top) in enumerate(moved.corners):
        expected = noise()[number, :, top : top + 20, left : left + 30]
        assert torch.equal(frames[number], expected)
    np.testing.assert_allclose(moved.coords_xy[:, 1], coords[:, 1] - (34, 19))


def test_erased_boxes_hide_points_and_show_their_mean():
    box = Box(2, left=10, top=20, right=30, bottom=40)
    plan = dataclasses.replace(STILL, erased=(box,))
    coords = np.zeros((5, FRAMES, 2), np.float32)
    coords[:] = np.array([(10, 20), (29.9, 39.9), (30, 25), (15, 40), (9.9, 25)])[:, None]
    moved = move_points(plan, coords, np.ones((5, FRAMES), bool))
    assert moved.visible[:, 2].tolist() == [False, False, True, True, True]
    assert moved.visible[:, [0, 1, 3]].all()
    frames, erased = noise(), erase(noise(), plan.erased)
    inside = erased[2, :, 20:40, 10:30]
    mean = frames[2, :, 20:40, 10:30].double().mean((1, 2))
    assert torch.equal(inside, mean.floor().byte()[:, None, None].expand_as(inside))
    erased[2, :, 20:40, 10:30] = frames[2, :, 20:40, 10:30]
    assert torch.equal(erased, frames)


def test_later_boxes_average_what_earlier_ones_left():
    frames = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    frames[1, :, :, 2:] = 100
    erased = erase(frames, [Box(1, 0, 0, 4, 4), Box(1, 0, 0, 2, 2), Box(1, 3, 3, 3, 4)])
    assert (erased[1] == 50).all()  # the third is empty and does nothing
    assert not erased[0].any()


def test_replaced_boxes_show_another_place_and_hide_points():
    box = Box(1, left=5, top=6, right=15, bottom=18)
    patches = [Patch(box, frame=3, left=40, top=50)]
    darker = Jitter(OPERATORS, 0.5, 1.0, 1.0, 0.0)
    frames = noise()
    result = replace(frames, patches, [(UNCHANGED, UNCHANGED)] * 3 + [(UNCHANGED, darker)])
    expected = jitter_frame(jitter_frame(frames[3], UNCHANGED), darker)[:, 50:62, 40:50]
    assert torch.equal(result[1, :, 6:18, 5:15], expected)
    result[1, :, 6:18, 5:15] = frames[1, :, 6:18, 5:15]
    assert torch.equal(result, frames)
    coords = np.full((1, FRAMES, 2), 10, np.float32)
    plan = dataclasses.replace(STILL, patches=tuple(patches))
    moved = move_points(plan, coords, np.ones((1, FRAMES), bool))
    assert moved.visible[0].tolist() == [True, False, True, True]


# --- blur against Pillow -------------------------------------------------------------------------


def as_pillow(frame):
    return Image.fromarray(frame.permute(1, 2, 0).numpy())


def from_pillow(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_blur_is_a_gaussian_of_this_deviation():
    frames = torch.zeros(2, 3, 41, 41, dtype=torch.uint8)
    frames[:, :, 20, 20] = 255
    sharp, soft = blur(frames, 11, [0.6, 1.5])
    for image, sigma in ((sharp, 0.6), (soft, 1.5)):
        offset = np.arange(-5, 6)
        weight = np.exp(-0.5 * (offset / sigma) ** 2)
        weight /= weight.sum()
        expected = np.zeros((41, 41))
        expected[15:26, 15:26] = 255 * np.outer(weight, weight)
        np.testing.assert_allclose(image[0], expected, atol=0.51)


def test_blur_keeps_a_plain_frame_and_mirrors_at_the_border():
    plain = torch.full((1, 3, 12, 12), 77, dtype=torch.uint8)
    assert torch.equal(blur(plain, 11, [2.0]), plain)
    frame = noise(1)
    pillow = as_pillow(frame[0]).filter(ImageFilter.GaussianBlur(1.0))
    interior = (blur(frame, 11, [1.0])[0].int() - from_pillow(pillow).int())[:, 6:-6, 6:-6]
    assert interior.abs().double().mean() < 4  # Pillow's is made of boxes


def test_frame_smaller_than_the_kernel():
    with pytest.raises(DataError, match=r"data\.augmentation\.blur_kernel=11 needs frames"):
        blur(torch.zeros(1, 3, 5, 40, dtype=torch.uint8), 11, [1.0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_agrees_with_cpu_and_is_not_waited_for():
    config = dataclasses.replace(
        KUBRIC, jitter_probability=1.0, blur_probability=1.0, replace_probability=0.5
    )
    plan = draw_plan(FRAMES, (HEIGHT, WIDTH), (56, 60), config, np.random.default_rng(0))
    assert plan.patches
    moved = move_points(plan, *random_points())
    here = render(plan, moved.corners, noise()).int()
    frames = noise().cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = render(plan, moved.corners, frames)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    difference = (here - there.cpu().int()).abs()
    assert difference.max() <= 2
    assert (difference > 0).double().mean() < 0.01
