"""The synthetic scenes: tracks stick to the surface, motion and occlusion are there."""

import dataclasses

import numpy as np
import pytest

from overt.data.rng import sample_rng
from overt.data.tracking import moving_shapes
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence

SETTINGS = SceneSettings(frames=24, height=96, width=128, points=256, seed=0, shapes=6, speed=2.5)
CORNER = (SETTINGS.width - 1, SETTINGS.height - 1)


@pytest.fixture(scope="module", params=range(3))
def scene(request):
    return make_sequence(SETTINGS, request.param)


def colors_at(video, coords):
    """Bilinear colors (N, T, 3) of a video (T, H, W, 3) at (N, T, 2); 0 is a pixel's centre."""
    frames, height, width, _ = video.shape
    x = np.clip(coords[..., 0], 0, width - 1)
    y = np.clip(coords[..., 1], 0, height - 1)
    left, top = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    share_x, share_y = (x - left)[..., None], (y - top)[..., None]
    time = np.broadcast_to(np.arange(frames), x.shape)
    pixels = video.astype(np.float64)
    upper = pixels[time, top, left] * (1 - share_x) + pixels[time, top, left + 1] * share_x
    lower = pixels[time, top + 1, left] * (1 - share_x) + pixels[time, top + 1, left + 1] * share_x
    return upper * (1 - share_y) + lower * share_y


def deviations(video, coords, visible):
    """How far the color of each visible point is from its usual color, over all such points."""
    colors = np.ma.array(colors_at(video, coords), mask=np.repeat(~visible[..., None], 3, axis=-1))
    usual = np.ma.median(colors, axis=1, keepdims=True)
    return np.abs(colors - usual).mean(axis=-1).compressed()


def test_shapes_and_types(scene):
    video, tracks = scene
    assert video.shape == (24, 96, 128, 3)
    assert video.dtype == np.uint8
    assert tracks.coords_xy.shape == (256, 24, 2)
    assert tracks.coords_xy.dtype == np.float32
    assert tracks.visible.shape == (256, 24)
    assert tracks.visible.dtype == np.bool_


def test_the_color_of_a_visible_point_stays(scene):
    video, tracks = scene
    moving = deviations(video, tracks.coords_xy, tracks.visible)
    still = deviations(
        video, np.repeat(tracks.coords_xy[:, :1], SETTINGS.frames, axis=1), tracks.visible
    )
    # Antialiased edges are a mixture, hence not every point.
    assert np.median(moving) < 1.0
    assert np.percentile(moving, 90) < 5.0
    assert np.median(moving) < np.median(still) / 8


def test_points_are_not_off_by_a_fraction_of_a_pixel():
    settings = dataclasses.replace(SETTINGS, shapes=0)
    layer = moving_shapes._background(settings, sample_rng(settings.seed, 0, 0))
    video, tracks = make_sequence(settings, 0)
    surface = layer.motion.to_surface(tracks.coords_xy[:, 0], np.zeros(settings.points, int))
    true_color = layer.color(surface)[:, None]  # (N, 1, 3), no frame involved

    def error(shift):
        colors = colors_at(video, tracks.coords_xy + np.array(shift))
        return np.abs(colors - true_color)[tracks.visible].mean()

    exact = error((0, 0))
    assert exact < 1.0
    for shift in ((0.25, 0), (-0.25, 0), (0, 0.25), (0, -0.25)):
        assert error(shift) > 2 * exact
    # Halfway between 0.25 to either side lies the best fit: no bias of a tenth of a pixel.
    for axis in (0, 1):
        step = np.eye(2)[axis] * 0.1
        assert error(step) > exact
        assert error(-step) > exact


def test_motion_is_smooth_and_not_trivial(scene):
    _, tracks = scene
    steps = np.linalg.norm(np.diff(tracks.coords_xy, axis=1), axis=-1)
    turns = np.linalg.norm(np.diff(tracks.coords_xy, n=2, axis=1), axis=-1)
    reach = np.linalg.norm(tracks.coords_xy - tracks.coords_xy[:, :1], axis=-1).max(axis=1)
    assert steps.max() < 2 * SETTINGS.speed
    assert turns.max() < 0.5
    assert np.median(reach) > 6
    assert np.percentile(reach, 90) > 12


def test_occlusion_happens_and_ends(scene):
    _, tracks = scene
    inside = ((tracks.coords_xy >= 0) & (tracks.coords_xy <= CORNER)).all(axis=-1)
    occluded = inside & ~tracks.visible
    assert 0.02 < occluded.mean() < 0.4
    reappears = (occluded[:, :-1] & tracks.visible[:, 1:]).sum()
    assert reappears > 0
    assert tracks.visible[:, 0].mean() > 0.5


def test_points_outside_the_frame_are_invisible(scene):
    _, tracks = scene
    inside = ((tracks.coords_xy >= 0) & (tracks.coords_xy <= CORNER)).all(axis=-1)
    assert not (tracks.visible & ~inside).any()
    assert not inside.all()  # the claim above is about something


def test_every_point_is_seen_somewhere(scene):
    _, tracks = scene
    assert tracks.visible.any(axis=1).mean() > 0.99


def test_visibility_agrees_with_the_pixels():
    # A white shape over a black background: the pixels say who is in front.
    settings = dataclasses.replace(SETTINGS, shapes=1, points=2000)
    rng = sample_rng(3, 0, 0)
    ground, shape = (
        dataclasses.replace(layer, texture=np.full_like(layer.texture, gray))
        for layer, gray in (
            (moving_shapes._background(settings, rng), 0),
            (moving_shapes._shape(settings, rng), 250),
        )
    )
    video = moving_shapes._render([ground, shape], settings)
    coords, visible = moving_shapes._track([ground, shape], settings, rng)
    depth = shape.inside(shape.motion.to_surface(coords, np.arange(settings.frames)))  # (N, T)
    on_ground = ~(depth > 0).all(axis=1, keepdims=True)
    in_frame = ((coords >= 0) & (coords <= CORNER)).all(axis=-1)
    # The nearest pixel is up to 0.7 pixels away, and pixels of the outline are a mixture.
    clear = on_ground & in_frame & (np.abs(depth) > 1.5)
    x, y = np.moveaxis(np.rint(coords).astype(int).clip(0, CORNER), -1, 0)
    covered = video[np.arange(settings.frames), y, x, 0] > 60
    assert (clear & covered).sum() > 200
    np.testing.assert_array_equal(visible[clear], ~covered[clear])


def test_a_sequence_depends_on_seed_and_number_only():
    small = SceneSettings(frames=3, height=24, width=32, points=16, seed=1, shapes=2, speed=2.0)
    video, tracks = make_sequence(small, 4)
    again, tracks_again = make_sequence(small, 4)
    np.testing.assert_array_equal(video, again)
    np.testing.assert_array_equal(tracks.coords_xy, tracks_again.coords_xy)
    np.testing.assert_array_equal(tracks.visible, tracks_again.visible)
    assert (make_sequence(small, 5)[0] != video).any()
    assert (make_sequence(dataclasses.replace(small, seed=2), 4)[0] != video).any()


def test_speed_sets_the_motion():
    def mean_step(speed):
        _, tracks = make_sequence(dataclasses.replace(SETTINGS, frames=6, speed=speed), 0)
        return np.linalg.norm(np.diff(tracks.coords_xy, axis=1), axis=-1).mean()

    assert mean_step(0.0) == 0
    assert 0 < mean_step(1.0) < mean_step(3.0)


@pytest.mark.parametrize("size", [(16, 16), (16, 100), (70, 33)])
def test_odd_sizes(size):
    height, width = size
    settings = SceneSettings(2, height, width, points=8, seed=0, shapes=3, speed=1.0)
    video, tracks = make_sequence(settings, 0)
    assert video.shape == (2, height, width, 3)
    assert np.isfinite(tracks.coords_xy).all()
