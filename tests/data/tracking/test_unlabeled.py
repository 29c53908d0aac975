"""Clips of videos without labels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from overt.data.rng import sample_rng
from overt.data.tracking.settings import TeacherSettings, UnlabeledSettings
from overt.data.tracking.unlabeled import (
    ClipShape,
    UnlabeledClips,
    clip_indices,
    draw_queries,
    random_crop,
    stack_unlabeled,
)
from overt.data.tracking.video import write_video
from overt.errors import DataError

SETTINGS = UnlabeledSettings([TeacherSettings("a"), TeacherSettings("b")], random_support=5)
SHAPE = ClipShape(6, 7, (16, 24), 12)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        write_video(root / f"{name}.gif", rng.integers(0, 255, (9, 3, 20, 30), dtype=np.uint8), 10)
    return UnlabeledClips(root, SETTINGS, SHAPE, repeat=3)


def test_a_sample_is_a_function_of_seed_epoch_and_index(clips):
    first, again = (clips.sample(3, sample_rng(1, 2, 3)) for _ in range(2))
    assert torch.equal(first.video, again.video)
    assert torch.equal(first.queries, again.queries)
    assert first.teacher == again.teacher
    assert first.video.shape == (6, 3, 16, 24)
    assert first.queries.shape == (12, 3)
    assert (first.queries[:, 0] <= 6 / 4).all()
    assert len(clips) == 6
    teachers = {clips.sample(0, sample_rng(0, epoch, 0)).teacher for epoch in range(12)}
    assert teachers == {0, 1}
    batch = stack_unlabeled([first, again])
    assert batch.video.shape == (2, 6, 3, 16, 24)
    assert batch.support.shape == (2, 5, 3)


def test_short_videos_are_played_forth_and_back():
    rng = np.random.default_rng(0)
    assert clip_indices(3, 8, 4, rng, Path("v")).tolist() == [0, 1, 2, 1, 0, 1, 2, 1]
    strides = {np.diff(clip_indices(100, 10, 4, rng, Path("v")))[0] for _ in range(40)}
    assert strides == {1, 2, 3}
    assert np.diff(clip_indices(20, 10, 4, rng, Path("v")))[0] == 1
    with pytest.raises(DataError, match="nothing moves"):
        clip_indices(1, 4, 4, rng, Path("v"))


def test_small_frames_are_enlarged_and_few_corners_are_filled_up():
    rng = np.random.default_rng(0)
    assert random_crop(np.zeros((2, 3, 10, 40), np.uint8), (16, 24), rng).shape == (2, 3, 16, 24)
    queries = draw_queries(np.zeros((8, 3, 16, 24), np.uint8), 10, SETTINGS, rng)
    assert queries.shape == (10, 3)
    assert (queries[:, 1] <= 23).all()
    assert (queries[:, 0] <= 2).all()


def test_a_broken_video_is_replaced_and_counted(clips, tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (9, 3, 20, 30), dtype=np.uint8)
    write_video(tmp_path / "a.gif", frames, 10)
    (tmp_path / "b.gif").write_bytes(b"GIF89a")
    broken = UnlabeledClips(tmp_path, SETTINGS, SHAPE)
    sample = broken.sample(1, sample_rng(0, 0, 1))
    assert sample.name == "a.gif"
    assert sample.redrawn >= 1
    with pytest.raises(DataError, match="none is left"):
        UnlabeledClips(tmp_path, SETTINGS, SHAPE, held_out=2)
