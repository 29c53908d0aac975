"""Synthetic TAP-Vid files: each format reads back as the scene it was made from."""

import numpy as np
import pytest

from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.data.tracking.synthetic_tapvid import write_videos
from overt.data.tracking.tapvid import FORMATS, TapVid
from overt.errors import DataError

SCENE = {"frames": 4, "height": 24, "width": 32, "points": 10, "seed": 3, "shapes": 2, "speed": 1.5}


@pytest.mark.parametrize("dataset", FORMATS)
def test_reads_back(tmp_path, dataset):
    files = write_videos(tmp_path, dataset, videos=3, **SCENE)
    assert files == sorted((tmp_path / FORMATS[dataset].folder).iterdir())
    videos = TapVid(tmp_path, dataset, size=None)
    assert len(videos) == 3
    for index in range(3):
        frames, tracks = make_sequence(SceneSettings(**SCENE), index)
        video = videos.video(index)
        difference = np.abs(video.video.transpose(0, 2, 3, 1).astype(int) - frames)
        assert difference.mean() < (3 if dataset == "kinetics" else 1e-9)  # JPEG loses a little
        seen = tracks.visible.any(axis=1)
        np.testing.assert_array_equal(video.occluded, ~tracks.visible[seen])
        np.testing.assert_allclose(video.tracks_xy, tracks.coords_xy[seen], atol=1e-4)


def test_many_videos_fill_all_files(tmp_path):
    files = write_videos(tmp_path, "kinetics", videos=12, **{**SCENE, "frames": 1, "points": 2})
    assert len(files) == 10
    assert len(TapVid(tmp_path, "kinetics")) == 12


def test_other_data_are_not_touched(tmp_path):
    (tmp_path / "tapvid_davis").mkdir()
    with pytest.raises(DataError, match="tapvid_davis exists"):
        write_videos(tmp_path, "davis", videos=1, **SCENE)
    assert not any((tmp_path / "tapvid_davis").iterdir())
