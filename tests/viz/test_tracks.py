"""Pictures of tracks: the points stand where they should, in colors that tell them apart."""

import numpy as np
import pytest
import torch
from PIL import Image

from overt.viz.tracks import (
    FRAMES_FILMED,
    draw_tracks,
    draw_video,
    film_beside_truth,
    save_image,
)

FRAMES, HEIGHT, WIDTH = 6, 24, 32


@pytest.fixture
def video():
    return torch.zeros(FRAMES, 3, HEIGHT, WIDTH, dtype=torch.uint8)


def still(*points):
    """Tracks (T, N, 2) of points that do not move, and visibility everywhere."""
    tracks = torch.tensor(points, dtype=torch.float32).expand(FRAMES, len(points), 2)
    return tracks, torch.ones(FRAMES, len(points), dtype=torch.bool)


def colored(image):
    """Where the picture is neither paper, ink nor gray video (H, W)."""
    pixels = image.int()
    return (pixels.amax(0) - pixels.amin(0)) > 80


def test_picture_is_a_strip_of_frames(video):
    tracks, visible = still((4, 4))
    one = draw_tracks(video, tracks, visible, columns=1, scale=4)
    three = draw_tracks(video, tracks, visible, columns=3, scale=4)
    assert one.dtype == torch.uint8
    assert one.shape[0] == 3
    assert one.shape[1] >= HEIGHT * 4
    assert three.shape[2] - one.shape[2] == pytest.approx(2 * WIDTH * 4, abs=40)
    rows = draw_tracks(video, tracks, visible, truth=tracks, columns=3, scale=4)
    assert rows.shape[1] - three.shape[1] == pytest.approx(HEIGHT * 4, abs=20)


@pytest.mark.parametrize("place", [(2.0, 3.0), (16.0, 20.0), (29.5, 11.25)])
def test_point_stands_at_its_pixel_centre(video, place):
    scale = 4
    tracks, visible = still(place)
    with_point = draw_tracks(video, tracks, visible, columns=1, scale=scale, trail=0)
    # A white pixel in the video shows where the panel lies in the picture.
    corner = video.clone()
    corner[:, :, 0, 0] = 255
    difference = draw_tracks(corner, tracks, visible, columns=1, scale=scale, trail=0).int()
    marks = torch.nonzero((difference - with_point.int()).abs().sum(0) > 40).float()
    # The centre of the first pixel; half of the blur around it falls outside the panel.
    origin = marks.amin(0)
    found = torch.nonzero(colored(with_point)).float().mean(0)
    expected = origin + (torch.tensor([place[1], place[0]]) + 0.5) * scale - 0.5
    assert (found - expected).abs().max() < 0.6


def test_occluded_point_is_a_ring(video):
    tracks, visible = still((16, 12))
    disc = draw_tracks(video, tracks, visible, columns=1, scale=6, trail=0)
    ring = draw_tracks(video, tracks, ~visible, columns=1, scale=6, trail=0)
    row, column = torch.nonzero(colored(disc)).float().mean(0).round().int().tolist()
    assert colored(disc)[row, column]
    assert not colored(ring)[row, column]
    assert colored(ring).sum() > 20


def test_trail_shows_the_past(video):
    tracks = torch.zeros(FRAMES, 1, 2)
    tracks[:, 0, 0] = torch.arange(FRAMES) * 5.0 + 2
    tracks[:, 0, 1] = 6
    visible = torch.ones(FRAMES, 1, dtype=torch.bool)
    short = draw_tracks(video, tracks, visible, trail=0, columns=2)
    long = draw_tracks(video, tracks, visible, trail=5, columns=2)
    assert (long != short).any(0).sum() > 100


def test_points_have_distinct_colors(video):
    points = [(3, 3), (28, 3), (3, 20), (28, 20)]
    colors = []
    for point in points:
        tracks, visible = still(point)
        image = draw_tracks(video, tracks, visible, columns=1, scale=4, trail=0)
        colors.append(image[:, colored(image)].float().median(dim=1).values)
    distances = [(a - b).abs().max() for i, a in enumerate(colors) for b in colors[:i]]
    assert min(distances) > 60


def test_error_is_drawn_as_a_line_to_the_truth(video):
    tracks, visible = still((6, 6))
    truth, _ = still((26, 18))
    right = draw_tracks(video, tracks, visible, truth=tracks, columns=1)
    wrong = draw_tracks(video, tracks, visible, truth=truth, columns=1)
    top_row = slice(0, right.shape[1] // 2)
    white = (wrong[:, top_row] > 180).all(0) & ~(right[:, top_row] > 180).all(0)
    assert white.sum() > 20


def test_predictions_that_are_not_finite_do_not_matter(video):
    tracks, visible = still((6, 6), (9, 9), (12, 12))
    tracks = tracks.clone()
    tracks[2:, 1] = float("nan")
    tracks[2:, 2] = float("inf")
    image = draw_tracks(video, tracks, visible, truth=tracks)
    assert colored(image).any()


def test_inputs_are_left_alone_and_output_repeats(video):
    tracks, visible = still((6, 6), (20, 9))
    before = video.clone(), tracks.clone(), visible.clone()
    one = draw_tracks(video, tracks.requires_grad_(), visible)
    other = draw_tracks(video, tracks, visible)
    assert torch.equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(before, (video, tracks, visible), strict=True))


def test_no_points_at_all(video):
    image = draw_tracks(video, torch.zeros(FRAMES, 0, 2), torch.zeros(FRAMES, 0, dtype=torch.bool))
    assert not colored(image).any()


def test_shapes_that_do_not_fit(video):
    tracks, visible = still((6, 6))
    with pytest.raises(ValueError, match="tracks has shape"):
        draw_tracks(video, tracks[1:], visible)
    with pytest.raises(ValueError, match="visible has shape"):
        draw_tracks(video, tracks, visible[1:])
    with pytest.raises(ValueError, match="truth has shape"):
        draw_tracks(video, tracks, visible, truth=tracks[:, :0])
    with pytest.raises(ValueError, match="truth_visible has shape"):
        draw_tracks(video, tracks, visible, truth=tracks, truth_visible=visible[:, :0])


def test_save_image(tmp_path):
    image = torch.randint(0, 256, (3, 5, 7), generator=torch.Generator().manual_seed(0))
    image = image.to(torch.uint8)
    save_image(tmp_path / "new" / "picture.png", image)
    stored = np.asarray(Image.open(tmp_path / "new" / "picture.png"))
    np.testing.assert_array_equal(stored, image.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("scale", [1, 4])
def test_video_keeps_its_frames_and_shows_the_points(video, scale):
    tracks, visible = still((6, 6), (25, 17))
    drawn = draw_video(video, tracks, visible, scale=scale)
    assert drawn.dtype == torch.uint8
    assert drawn.shape == (FRAMES, 3, HEIGHT * scale, WIDTH * scale)
    for x, y in ((6, 6), (25, 17)):
        row, column = (round((place + 0.5) * scale - 0.5) for place in (y, x))
        assert all(colored(frame)[row, column] for frame in drawn)
    assert torch.equal(drawn[0], drawn[-1])  # nothing moves
    untouched = draw_video(video, tracks[:, :0], visible[:, :0], scale=scale)
    assert not colored(untouched[0]).any()


def test_trail_of_a_video_fades_and_ends(video):
    tracks, visible = still((2, 6))
    tracks = tracks.clone()
    tracks[:, 0, 0] += 5 * torch.arange(FRAMES)
    scale, trail = 8, 2
    last = draw_video(video, tracks, visible, scale=scale, trail=trail)[-1]
    line = last[:, round(6.5 * scale)].int().amax(0)  # brightness along the path, (W * scale,)
    newest, oldest, beyond = (round((2 + 5 * step + 0.5) * scale) for step in (4.5, 3.5, 2.5))
    assert line[newest] > line[oldest] > line[beyond]
    assert (
        line[beyond]
        == draw_video(video, tracks, visible, scale=scale, trail=0)[-1].max(0)[0][
            round(6.5 * scale), beyond
        ]
    )


def test_more_points_are_drawn_smaller(video):
    one, visible = still((16, 12))
    many = one.repeat(1, 400, 1)
    few_pixels = colored(draw_video(video, one, visible, scale=8)[0]).sum()
    many_pixels = colored(draw_video(video, many, visible.repeat(1, 400), scale=8)[0]).sum()
    assert many_pixels < few_pixels


def test_video_shapes_that_do_not_fit(video):
    tracks, visible = still((6, 6))
    with pytest.raises(ValueError, match="visible has shape"):
        draw_video(video, tracks, visible[1:])


@pytest.mark.parametrize("frames", [FRAMES, 2 * FRAMES_FILMED])
def test_a_film_shows_prediction_left_and_truth_right(frames):
    video = torch.zeros(frames, 3, HEIGHT, WIDTH, dtype=torch.uint8)
    visible = torch.ones(frames, 1, dtype=torch.bool)
    predicted = torch.tensor([[[4.0, 4.0]]]).expand(frames, 1, 2)
    true = torch.tensor([[[28.0, 20.0]]]).expand(frames, 1, 2)
    film = film_beside_truth(video, predicted, visible, true, visible)
    scale = film.shape[2] // HEIGHT
    assert film.shape == (min(frames, FRAMES_FILMED), 3, HEIGHT * scale, 2 * WIDTH * scale)
    places = colored(film[-1]).nonzero().double() / scale  # (row, column)
    left = places[:, 1] < WIDTH
    torch.testing.assert_close(
        places[left].mean(0), torch.tensor([4.5, 4.5]).double(), atol=1, rtol=0
    )
    truth = torch.tensor([20.5, WIDTH + 28.5]).double()
    torch.testing.assert_close(places[~left].mean(0), truth, atol=1, rtol=0)
