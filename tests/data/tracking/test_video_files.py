"""A folder of videos."""

import numpy as np
import pytest
from PIL import Image

from overt.data.tracking import video, video_files
from overt.data.tracking.video import has_pyav, write_video
from overt.data.tracking.video_files import find_videos, frame_count, read_frames
from overt.errors import DataError

FRAMES = np.random.default_rng(0).integers(0, 255, (6, 3, 16, 24), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    write_video(root / "b.gif", FRAMES, 10)
    for number, frame in enumerate(FRAMES):
        path = root / "a" / "frames" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(frame.transpose(1, 2, 0)).save(path)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "c.gif").write_bytes(b"")
    (root / "notes.txt").write_text("no video")
    return root


def test_files_and_folders_of_frames_are_videos(folder):
    videos = find_videos(folder)
    assert [path.name for path in videos] == ["frames", "b.gif"]
    assert [frame_count(path) for path in videos] == [6, 6]
    assert np.array_equal(read_frames(videos[0], [1, 4]), FRAMES[[1, 4]])
    assert read_frames(videos[1], [0, 5]).shape == (2, 3, 16, 24)


def test_a_still_webp_is_a_frame_and_an_animated_one_a_video(tmp_path):
    for number, frame in enumerate(FRAMES):
        picture = Image.fromarray(frame.transpose(1, 2, 0))
        picture.save(tmp_path / f"{number}.webp", lossless=True, exif=Image.Exif())
    write_video(tmp_path / "film.webp", FRAMES, 10)
    videos = find_videos(tmp_path)
    assert videos == [tmp_path, tmp_path / "film.webp"]
    assert [frame_count(path) for path in videos] == [6, 6]
    assert np.array_equal(read_frames(tmp_path, range(6)), FRAMES)


def test_every_kind_of_image_that_is_a_frame_is_read(tmp_path):
    picture = Image.fromarray(FRAMES[0].transpose(1, 2, 0))
    for number, suffix in enumerate((".bmp", ".tif", ".png")):
        picture.save(tmp_path / f"{number}{suffix}")
    assert np.array_equal(read_frames(tmp_path, [0, 1, 2]), FRAMES[[0, 0, 0]])


@pytest.mark.skipif(not has_pyav(), reason="PyAV is not installed")
def test_only_the_frames_asked_for_are_kept_of_a_film(tmp_path):
    write_video(tmp_path / "film.mp4", np.repeat(np.arange(0, 250, 25), 16 * 24 * 3)
                .reshape(10, 3, 16, 24).astype(np.uint8), 10)  # fmt: skip
    (film,) = find_videos(tmp_path)
    assert frame_count(film) == 10
    gray = read_frames(film, [2, 7]).mean((1, 2, 3))
    assert np.allclose(gray, [50, 175], atol=4)
    (tmp_path / "broken.mp4").write_bytes(b"not a film")
    with pytest.raises(DataError, match="cannot be opened"):
        frame_count(tmp_path / "broken.mp4")


def test_refused_folders(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no such folder"):
        find_videos(tmp_path / "none")
    with pytest.raises(DataError, match="no videos"):
        find_videos(tmp_path)
    (tmp_path / "film.mp4").write_bytes(b"")
    for module in (video, video_files):
        monkeypatch.setattr(module, "has_pyav", lambda: False)
    with pytest.raises(DataError, match="pip install av"):
        find_videos(tmp_path)
