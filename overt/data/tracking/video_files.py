"""A folder of videos: their list, their lengths, and single frames.

A video is a file, or a folder whose own files are images. This file does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overt.data.tracking.video import (
    MOVING_IMAGES,
    has_pyav,
    is_frame,
    need_pyav,
    ordered_images,
    read_image,
    read_video,
    upright_pixels,
)
from overt.errors import DataError

CONTAINERS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".ogv")
ARRAYS = (".npy", ".npz")
COUNTED = 4096  # videos whose length is remembered in a loader process


def find_videos(root: Path | str) -> list[Path]:
    """Return the videos below a folder, at any depth, sorted by path."""
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"data.root={root}: no such folder; give one that holds videos")
    videos, frame_folders = [], set()
    for path in root.rglob("*"):
        suffix = path.suffix.lower()
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        if is_frame(path):
            frame_folders.add(path.parent)
        elif suffix in (*CONTAINERS, *MOVING_IMAGES) or suffix == ".npz":
            videos.append(path)
    videos = sorted([*videos, *frame_folders])
    if not videos:
        raise DataError(
            f"data.root={root}: no videos in it; expected files such as {', '.join(CONTAINERS[:4])}"
            ", GIF, WebP, or folders of images"
        )
    if not has_pyav():
        container = next((video for video in videos if video.suffix.lower() in CONTAINERS), None)
        if container is not None:
            need_pyav(f"{container}: to read it")
    return videos


@lru_cache(maxsize=COUNTED)
def frame_count(video: Path) -> int:
    """Return the number of frames of a video."""
    if video.is_dir():
        return len(ordered_images(video))
    if video.suffix.lower() not in CONTAINERS:
        return len(read_video(video).frames)
    import av

    try:
        with av.open(str(video)) as container:
            if not container.streams.video:
                raise DataError(f"{video}: it has no video stream")
            stream = container.streams.video[0]
            if stream.frames:
                return int(stream.frames)
            # Some containers do not store the number: packets are counted, not decoded.
            return sum(1 for packet in container.demux(stream) if packet.size)
    except (av.error.FFmpegError, OSError) as error:
        raise DataError(f"{video}: it cannot be opened ({error})") from error


def read_frames(video: Path, indices: Sequence[int] | NDArray[np.intp]) -> NDArray[np.uint8]:
    """Return the frames (T, 3, H, W) with these increasing indices, decoding little more."""
    if video.is_dir():
        paths = ordered_images(video)
        frames = [read_image(paths[index]) for index in indices]
    elif video.suffix.lower() in CONTAINERS:
        frames = _decode_some(video, {int(index) for index in indices})
    else:
        chosen_frames: NDArray[np.uint8] = read_video(video).frames[np.asarray(indices)]
        return chosen_frames
    sizes = sorted({frame.shape[1::-1] for frame in frames})
    if len(sizes) > 1 or len(frames) < len(indices):
        raise DataError(
            f"{video}: {len(frames)} of {len(indices)} frames could be read, with sizes "
            f"{', '.join(f'{width}x{height}' for width, height in sizes)}"
        )
    return np.stack([frame.transpose(2, 0, 1) for frame in frames])


def _decode_some(video: Path, indices: set[int]) -> list[NDArray[np.uint8]]:
    """Return the frames (H, W, 3) with these indices; nothing after the last is decoded."""
    import av

    frames, last = [], max(indices)
    try:
        with av.open(str(video)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for index, frame in enumerate(container.decode(stream)):
                if index in indices:
                    frames.append(upright_pixels(frame))
                if index >= last:
                    break
    except (av.error.FFmpegError, OSError) as error:
        raise DataError(f"{video}: it cannot be decoded ({error})") from error
    return frames
