"""PointOdyssey, in small files of its layout."""

import numpy as np
import pytest
from PIL import Image

from overt.data.tracking.point_odyssey import PointOdyssey
from overt.errors import DataError

FRAMES, HEIGHT, WIDTH = 9, 20, 700


def write_point_odyssey(root, split="test"):
    """Point 0 is good; 1 jumps, 2 is infinite once, 3 starts hidden, 4 is outer, 5 invalid."""
    folder = root / split / "ani"
    (folder / "rgbs").mkdir(parents=True)
    for number in range(FRAMES + 1):  # more frames than are asked for
        pixels = np.full((HEIGHT, WIDTH, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(folder / "rgbs" / f"rgb_{number:05d}.jpg")
    coords = np.full((FRAMES + 1, 6, 2), 10.0, np.float32)
    states = np.ones((FRAMES + 1, 6), np.float32)
    coords[4, 1, 0] = 600
    coords[3, 2] = np.inf
    states[0, 3] = 0
    coords[:, 4, 0] = 0.5
    states[2:, 5] = 2
    np.savez(folder / "annot.npz", trajs_2d=coords, visibs=states)
    return folder


def test_tracks_that_can_be_scored_are_kept(tmp_path):
    write_point_odyssey(tmp_path)
    videos = PointOdyssey(tmp_path, frames=FRAMES)
    assert videos.names == ["ani"]
    clip = videos.clip(0)
    assert clip.frames.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert len(clip.coords_xy) == 2  # points 0 and 2
    assert np.isfinite(clip.coords_xy).all()
    assert not clip.visible[1, 3]
    assert clip.valid is not None
    assert not clip.valid[1, 3]
    assert clip.visible.sum() == 2 * FRAMES - 1
    assert len(PointOdyssey(tmp_path, frames=FRAMES, points=1).clip(0).coords_xy) == 1


def test_what_is_refused(tmp_path):
    with pytest.raises(DataError, match="no SEQUENCE"):
        PointOdyssey(tmp_path)
    folder = write_point_odyssey(tmp_path)
    (folder / "rgbs" / "rgb_00001.jpg").unlink()
    with pytest.raises(DataError, match="rgb_00001"):
        PointOdyssey(tmp_path).clip(0)
    np.savez(folder / "annot.npz", trajs_2d=np.zeros((2, 3)), visibs=np.zeros((2, 3)))
    with pytest.raises(DataError, match="expected"):
        PointOdyssey(tmp_path).clip(0)
    np.savez(folder / "annot.npz", trajs_2d=np.zeros((0, 3, 2)), visibs=np.zeros((0, 3)))
    with pytest.raises(DataError, match="at least one frame"):
        PointOdyssey(tmp_path).clip(0)
    (folder / "annot.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        PointOdyssey(tmp_path).clip(0)
