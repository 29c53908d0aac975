"""overt/data/tracking/video_stream.py: frames arrive one by one, from files or from a camera."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.data.tracking import video as video_module
from overt.data.tracking.video import write_video
from overt.data.tracking.video_stream import stream_frames, stream_rate
from overt.errors import DataError


def test_an_array_is_streamed_frame_by_frame(tmp_path: Path) -> None:
    video = np.random.default_rng(0).integers(0, 255, (3, 8, 10, 3), dtype=np.uint8)
    np.save(tmp_path / "video.npy", video)
    frames = list(stream_frames(tmp_path / "video.npy"))
    assert [frame.shape for frame in frames] == [(3, 8, 10)] * 3
    np.testing.assert_array_equal(frames[1], video[1].transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_file_tells_its_frame_rate_before_it_is_decoded(suffix: str, tmp_path: Path) -> None:
    if suffix == ".mp4":
        pytest.importorskip("av")
    path = tmp_path / f"video{suffix}"
    frames = np.random.default_rng(0).integers(0, 255, (3, 3, 16, 16), dtype=np.uint8)
    write_video(path, frames, 25)
    assert stream_rate(path) == pytest.approx(25)
    assert stream_rate(tmp_path) is None
    assert stream_rate(0) is None


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".TIFF"])
def test_files_that_store_no_rate_are_not_read_for_it(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"video{suffix}"
    path.write_bytes(b"no video")
    assert stream_rate(path) is None


class Camera:
    """Stands in for a container of PyAV: two gray frames."""

    def __init__(self, name: str, kind: str | None) -> None:
        self.name, self.kind = name, kind
        self.streams = types.SimpleNamespace(video=[0])

    def __enter__(self) -> "Camera":
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def decode(self, stream: int) -> Any:
        for value in (10, 20):
            pixels = np.full((4, 6, 3), value, np.uint8)
            yield types.SimpleNamespace(to_ndarray=lambda format, pixels=pixels: pixels)


def test_a_number_is_a_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Camera] = []

    def open_camera(name: str, format: str | None = None) -> Camera:
        opened.append(Camera(name, format))
        return opened[-1]

    error = types.SimpleNamespace(FFmpegError=ValueError)
    monkeypatch.setitem(sys.modules, "av", types.SimpleNamespace(open=open_camera, error=error))
    monkeypatch.setattr(video_module, "has_pyav", lambda: True)
    monkeypatch.setattr(sys, "platform", "linux")
    frames = list(stream_frames(1))
    assert [int(frame.mean()) for frame in frames] == [10, 20]
    assert (opened[0].name, opened[0].kind) == ("/dev/video1", "v4l2")


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no such file"):
        next(stream_frames(tmp_path / "none.mp4"))
    monkeypatch.setattr(video_module, "has_pyav", lambda: False)
    (tmp_path / "video.mp4").write_bytes(b"")
    with pytest.raises(DataError, match="pip install av"):
        next(stream_frames(tmp_path / "video.mp4"))
    monkeypatch.setattr(sys, "platform", "plan9")
    with pytest.raises(DataError, match="cameras are supported on linux and darwin"):
        next(stream_frames(0))
