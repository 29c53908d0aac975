"""A test set of moving photographs is read back as TAP-Vid videos, with its truth."""

import pickle

import numpy as np
import pytest
from PIL import Image

from overt.data.tracking.procedural_tapvid import write_photograph_videos
from overt.data.tracking.tapvid import TapVid
from overt.errors import DataError
from tests.data.tracking.procedural_values import small_settings


def test_reads_back(tmp_path):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    rough = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(rough).save(photographs / "rough.png")
    sizes = {"videos": 2, "frames": 3, "size": (32, 32), "points": 6}
    file = write_photograph_videos(tmp_path, photographs, small_settings(), **sizes)
    videos = TapVid(tmp_path, "davis", size=(32, 32))
    video = videos.video(1)
    assert len(videos) == 2
    assert video.video.shape == (3, 3, 32, 32)
    assert len(video.queries_txy) == 6
    assert (video.queries_txy[:, 0] == 0).all()
    stored = pickle.loads(file.read_bytes())["photographs-001"]
    assert np.allclose(stored["points"] * 31, video.tracks_xy, atol=1e-4)
    with pytest.raises(DataError, match="exists"):
        write_photograph_videos(tmp_path, photographs, small_settings(), **sizes)
