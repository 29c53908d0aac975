"""Procedural clips: functions of their numbers alone, and tracks that follow their textures."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from overt.config import load
from overt.data.rng import sample_rng
from overt.data.tracking.procedural import (
    ProceduralClips,
    follow_points,
    make_clips,
    to_batch,
)
from overt.data.tracking.procedural_scene import DRAWS, draw_scene
from overt.data.tracking.textures import load_textures
from overt.errors import ConfigError
from tests.data.tracking.procedural_values import small_settings

SIZE, FRAMES, POINTS = (32, 40), 5, 24


def numbers(count=2, seed=0):
    source = ProceduralClips(small_settings())
    return torch.stack([source.sample(index, sample_rng(seed, 0, index)) for index in range(count)])


@pytest.fixture(scope="module")
def textures():
    return load_textures(None, 32, 3)


@pytest.fixture(scope="module")
def clips(textures):
    return make_clips(numbers(), textures, small_settings(), SIZE, FRAMES, POINTS)


def test_shapes(clips):
    batch = to_batch(clips)
    assert batch.video.shape == (2, FRAMES, 3, *SIZE)
    assert batch.video.dtype == torch.uint8
    assert batch.tracks.shape == (2, FRAMES, POINTS, 2)
    assert batch.visibility.shape == batch.valid.shape == (2, FRAMES, POINTS)
    assert batch.queries.shape == (2, POINTS, 3)


def test_a_clip_follows_from_its_own_numbers(clips, textures):
    """Neither the batch it is made in nor what was made before changes it."""
    alone = make_clips(numbers()[1:], textures, small_settings(), SIZE, FRAMES, POINTS)
    assert torch.allclose(alone.tracks, clips.tracks[1:], atol=1e-3)
    assert (alone.video.int() - clips.video[1:].int()).abs().max() <= 1
    assert ((clips.tracks[0] - clips.tracks[1]).abs().max() > 1).item()


def test_queries_lie_on_their_tracks_and_are_visible(clips):
    frame = clips.queries[..., 0].long()
    index = frame[:, None, :]
    there = clips.tracks.gather(1, index[..., None].expand(-1, 1, -1, 2))[:, 0]
    assert torch.allclose(there, clips.queries[..., 1:], atol=2e-3)
    assert clips.visible.gather(1, index).all()
    last = torch.tensor([SIZE[1] - 1, SIZE[0] - 1])
    assert ((clips.queries[..., 1:] >= 0) & (clips.queries[..., 1:] <= last)).all()


def test_tracks_follow_the_texture():
    """A smooth texture in plain light looks the same wherever a point is visible."""
    settings = small_settings(
        present=0.0, lights=0.0, motion_blur=0.0, blur=0.0, noisy=0.0, compressed=0.0, gray=0.0,
        texels_per_pixel=[0.3, 0.5], static_clips=0.0, static_camera=0.0, camera_shift=0.6,
    )  # fmt: skip
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    smooth = (128 + 100 * torch.sin(x / 5) * torch.cos(y / 6)).int()
    clip = make_clips(numbers(1), (smooth * 0x10101)[None], settings, SIZE, FRAMES, 64)
    moved = (clip.tracks[0] - clip.tracks[0, :1]).norm(dim=-1)
    assert moved.mean() > 3
    grid = clip.tracks[0] / (torch.tensor([SIZE[1] - 1, SIZE[0] - 1]) / 2) - 1  # (T, N, 2)
    colors = torch.nn.functional.grid_sample(
        clip.video[0].float(), grid[:, None], align_corners=True
    )[:, 0, 0]
    seen = clip.visible[0]
    assert seen.float().mean() > 0.3
    mean = (colors * seen).sum(0) / seen.sum(0)
    assert ((colors - mean).abs() * seen).max() < 12
    still = clip.video[0, 0, 0].float()
    assert still.std() > 10  # or it would show nothing


def test_a_static_clip_stands_still(textures):
    settings = small_settings(static_clips=1.0, lights=0.0, noisy=0.0)
    clip = make_clips(numbers(1), textures, settings, SIZE, FRAMES, POINTS)
    assert torch.allclose(clip.tracks, clip.tracks[:, :1].expand_as(clip.tracks), atol=1e-3)
    assert (clip.video == clip.video[:, :1]).all()


def test_what_lies_behind_a_layer_is_hidden_and_returns(textures):
    """Large layers that move over the background hide points of it, some of them for long."""
    settings = small_settings(present=1.0, sizes=[0.5, 0.9], thin=0.0, foreground=0.0)
    clip = make_clips(numbers(8), textures, settings, SIZE, 24, 64)
    inside = ((clip.tracks >= 0) & (clip.tracks <= torch.tensor([39.0, 31.0]))).all(-1)
    assert (inside & ~clip.visible).float().mean() > 0.05
    assert not (clip.visible & ~inside).any()
    # Hidden in eight frames in a row, a third of the clip, visible before and afterwards.
    long = (~clip.visible).unfold(1, 8, 1).all(-1)  # (B, 17, N)
    seen = clip.visible.long().cumsum(1)  # (B, 24, N)
    before = torch.cat([torch.zeros_like(seen[:, :1]), seen], 1)[:, : long.shape[1]]
    returned = long & (before > 0) & (seen[:, -1:] > before)
    assert returned.any(1).float().mean() > 0.01


class Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += 1
        return function(*arguments, **(options or {}))


def test_points_need_no_more_operations_with_more_layers():
    """On a GPU each is a launch, and there are few pixels in it."""
    counts = []
    for layers in (2, 7):
        settings = small_settings(layers=layers)
        scene = draw_scene(numbers(), FRAMES, settings, 16.0)
        with Operations() as operations:
            follow_points(scene, settings, SIZE, POINTS)
        counts.append(operations.count)
    assert counts[0] == counts[1]


APPEARANCE = ("lights", "motion_blur", "blur", "gray", "noisy", "compressed")


@pytest.mark.parametrize("name", APPEARANCE)
def test_appearance_changes_pixels_and_no_track(textures, name):
    # All clips move: nothing else is blurred by motion.
    off = dict.fromkeys((*APPEARANCE, "static_clips", "static_camera", "static_things"), 0.0)
    first, second = (
        make_clips(numbers(), textures, small_settings(**values), SIZE, FRAMES, POINTS)
        for values in (off, off | {name: 1.0})
    )
    assert torch.equal(first.tracks, second.tracks)
    assert torch.equal(first.visible, second.visible)
    assert (first.video != second.video).flatten(1).any(1).all()  # of every clip


def test_samples_are_enough_numbers_for_the_largest_scene():
    settings = small_settings(layers=16, solids=1.0, articulated=1.0)
    row = torch.from_numpy(np.random.default_rng(0).random((1, DRAWS), dtype=np.float32))
    clip = make_clips(row, load_textures(None, 32, 1), settings, (16, 16), 2, 1000)
    assert clip.tracks.isfinite().all()


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="layers"):
        small_settings(layers=40)
    with pytest.raises(ConfigError, match="smaller"):
        small_settings(sizes=[0.5, 0.1])


def test_the_recipe_starts_no_loader_process():
    assert load(["recipe=cotracker3_small"]).training.num_workers == 0
