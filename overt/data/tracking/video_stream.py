"""Frames one by one: from a file, decoded while it is read, or from a camera.

Frames are (3, H, W) uint8 RGB. This file does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overt.data.tracking.video import (
    IMAGES,
    MOVING_IMAGES,
    need_pyav,
    read_video,
    upright_pixels,
)
from overt.errors import DataError

# FFmpeg's names of the camera interface of a system, and of camera n.
CAMERAS = {
    "linux": ("v4l2", "/dev/video{}"),
    "darwin": ("avfoundation", "{}"),
}

Frame = NDArray[np.uint8]


def stream_frames(source: Path | int) -> Iterator[Frame]:
    """Yield the frames of a video file, a folder of images, or camera number `source`."""
    if isinstance(source, int):
        name, kind = _camera(source)
        try:
            yield from _decode(name, kind)
        except DataError as error:
            raise DataError(
                f"camera {source}: {error}; plug one in, give its number, or give a video file"
            ) from error
    elif source.suffix.lower() in (*IMAGES, *MOVING_IMAGES, ".npy", ".npz") or not source.is_file():
        yield from read_video(source).frames
    else:
        yield from _decode(str(source), None)


def stream_rate(source: Path | int) -> float | None:
    """Return the frame rate that a video file stores, None for a camera or a folder."""
    if isinstance(source, int) or not source.is_file():
        return None
    suffix = source.suffix.lower()
    if suffix in (".npy", ".npz", ".tif", ".tiff"):  # large, and without one
        return None
    if suffix in (*IMAGES, *MOVING_IMAGES):
        return read_video(source).fps
    need_pyav(f"{source}: to read it")
    import av

    try:
        with av.open(str(source)) as container:
            rates = [stream.average_rate for stream in container.streams.video]
    except (av.error.FFmpegError, OSError):  # decoding reports this better
        return None
    return float(rates[0]) if rates and rates[0] else None


def _camera(number: int) -> tuple[str, str]:
    backend = CAMERAS.get(sys.platform)
    if backend is None:
        raise DataError(
            f"camera {number}: cameras are supported on {' and '.join(CAMERAS)}, not on "
            f"{sys.platform}; give a video file"
        )
    kind, name = backend
    return name.format(number), kind


def _decode(name: str, kind: str | None) -> Iterator[Frame]:
    need_pyav(f"{name}: to read it")
    import av

    try:
        with av.open(name, format=kind) as container:
            if not container.streams.video:
                raise DataError(f"{name}: it has no video stream")
            for frame in container.decode(container.streams.video[0]):
                yield np.ascontiguousarray(upright_pixels(frame).transpose(2, 0, 1))
    except (av.error.FFmpegError, OSError) as error:
        raise DataError(f"{name}: it cannot be opened or decoded ({error})") from error
