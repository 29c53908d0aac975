"""Read and write videos: folders of images, GIF, WebP, arrays, and with PyAV MP4 and others.

T frames of H x W pixels, uint8 RGB. This file does not import torch.
"""

from __future__ import annotations

import importlib.util
import math
import re
import struct
import zipfile
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from overt.data.pictures import BROKEN, to_upright_rgb, with_palette
from overt.errors import DataError
from overt.files.bounds import open_arrays
from overt.progress import each

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
MOVING_IMAGES = (".gif", ".webp", ".apng")
WRITTEN = (".gif", ".webp", ".mp4")

# Seconds that a frame lasts at most: GIF has 16 bits for hundredths, WebP 24 bits for thousandths,
# and the frame rate of an MP4 is a fraction with a denominator up to 1000.
LONGEST = {".gif": 655.35, ".webp": 16777.215, ".mp4": 1000.0}
FASTEST = 1000.0  # frames per second; MP4 counts its length in milliseconds


class Video(NamedTuple):
    """The frames of a video, and its frame rate if the file has one."""

    frames: NDArray[np.uint8]  # (T, 3, H, W)
    fps: float | None


def has_pyav() -> bool:
    """Return whether MP4 and other containers can be read and written.

    PyAV is installed with overt; it may be missing if overt runs from a bare folder.
    """
    return importlib.util.find_spec("av") is not None


def need_pyav(purpose: str, otherwise: str = "") -> None:
    """Raise an error if PyAV is needed and missing."""
    if not has_pyav():
        raise DataError(f"{purpose}, PyAV is needed: pip install av{otherwise}")


def read_video(path: Path | str) -> Video:
    """Read a folder of images, a GIF or WebP, a .npy or .npz array, or whatever PyAV decodes."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    suffix = path.suffix.lower()
    if path.is_dir():
        video = Video(_read_folder(path), None)
    elif suffix in MOVING_IMAGES:
        video = _read_moving_image(path)
    elif suffix in (".npy", ".npz"):
        video = Video(_read_array(path), None)
    elif suffix in IMAGES:
        if not _has_pages(path):
            raise DataError(f"{path} is a single image; give the folder of a video's frames")
        video = _read_moving_image(path)
    else:
        video = _read_by_pyav(path)
    height, width = video.frames.shape[2:]
    if min(height, width) < 2:
        raise DataError(f"{path}: frames of {width} x {height} pixels; at least 2 x 2 are needed")
    return video


def write_video(path: Path | str, frames: NDArray[np.uint8], fps: float) -> None:
    """Write frames (T, 3, H, W) as GIF, WebP or MP4, by suffix.

    A frame rate outside the range of the format is replaced by the nearest that it can store.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in WRITTEN:
        raise DataError(f"{path}: a video is written as {', '.join(WRITTEN)}, not as {suffix!r}")
    if not (math.isfinite(fps) and fps > 0):
        raise DataError(f"{path}: fps={fps:g} is not a positive finite number; give one such as 25")
    if not len(frames):
        raise DataError(f"{path}: got 0 frames to write; give at least one")
    pictures = [np.ascontiguousarray(frame.transpose(1, 2, 0)) for frame in frames]
    fps = min(max(fps, 1 / LONGEST[suffix]), FASTEST)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if suffix == ".mp4":
            _write_by_pyav(path, pictures, fps)
        else:
            _write_by_pillow(path, pictures, fps)
    # Sizes and total durations that a format cannot store; Pillow adds up those of equal frames.
    except (ValueError, ArithmeticError, RuntimeError, struct.error) as error:
        others = " or ".join(other for other in WRITTEN if other != suffix)
        raise DataError(
            f"{path}: {len(frames)} frames of shape {frames.shape[1:]} at {fps:g} frames per "
            f"second cannot be stored as {suffix} ({error}); write {others}"
        ) from error


def ordered_images(folder: Path) -> list[Path]:
    """Return the image files of a folder of frames in temporal order."""
    # macOS writes a hidden ._NAME beside each file of a disk that is not its own.
    paths = [path for path in folder.iterdir() if is_frame(path) and path.name[0] != "."]
    if not paths:
        raise DataError(f"{folder}: it has no images; expected {', '.join(IMAGES)} or still .webp")
    return sorted(paths, key=natural_order)


def is_frame(path: Path) -> bool:
    """Return whether a file is one frame of a video: an image, but not an animated WebP."""
    suffix = path.suffix.lower()
    return suffix in IMAGES or (suffix == ".webp" and not _is_animated_webp(path))


def _is_animated_webp(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(21)
    except OSError:  # reading its pixels reports this better
        return False
    # Only the extended header, VP8X, has flags; bit 1 announces an animation.
    return header[8:16] == b"WEBPVP8X" and bool(header[20:] and header[20] & 2)


def read_image(path: Path) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of one frame of a folder, upright."""
    try:
        with Image.open(path) as image:
            return to_upright_rgb(image)
    except BROKEN as error:
        raise DataError(f"{path}: not a readable image ({error}); remove it") from error


def _read_folder(folder: Path) -> NDArray[np.uint8]:
    return _stack([read_image(path) for path in ordered_images(folder)], folder)


def natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key: frame 10 after frame 9, with or without leading zeros."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _has_pages(path: Path) -> bool:
    """Return whether a TIFF is a stack, as microscopes write them, or a PNG is animated."""
    if path.suffix.lower() not in (".tif", ".tiff", ".png"):  # a phone's JPEG may hold a thumbnail
        return False
    try:
        with Image.open(path) as image:
            return getattr(image, "n_frames", 1) > 1
    except BROKEN as error:
        raise DataError(f"{path}: it cannot be decoded ({error})") from error


def _read_moving_image(path: Path) -> Video:
    try:
        with Image.open(path) as image:
            if image.format == "GIF" and not _is_whole_gif(path.read_bytes()):
                raise EOFError("it is truncated: its last frame lacks an end mark")
            frames, durations = [], []
            for frame in ImageSequence.Iterator(image):
                frames.append(to_upright_rgb(frame))
                durations.append(frame.info.get("duration", 0))  # milliseconds
    except BROKEN as error:
        raise DataError(f"{path}: it cannot be decoded ({error})") from error
    total = sum(durations)
    return Video(_stack(frames, path), 1000 * len(frames) / total if total else None)


def _is_whole_gif(content: bytes) -> bool:
    """Return whether the blocks of a GIF reach its end mark. Pillow accepts truncated files."""

    def colors(flags: int) -> int:  # bytes of the table of colors that the flags announce
        return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0

    try:
        offset = 13 + colors(content[10])
        while content[offset] != 0x3B:
            if content[offset] == 0x2C:  # a frame
                offset += 11 + colors(content[offset + 9])
            elif content[offset] == 0x21:  # something about the frames
                offset += 2
            else:  # nothing known: passed over, as by Pillow
                offset += 1
                continue
            while content[offset]:  # data in pieces, each with its length before it
                offset += 1 + content[offset]
            offset += 1
    except IndexError:
        return False
    return True


def _read_array(path: Path) -> NDArray[np.uint8]:
    try:
        content = open_arrays(path)
        if path.suffix.lower() == ".npz":
            with content:
                names = list(content)
                if len(names) != 1 and "video" not in names:
                    raise DataError(
                        f"{path}: it holds {', '.join(names) or 'nothing'}; name the array `video`"
                    )
                content = content["video" if "video" in names else names[0]]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a readable array ({error})") from error
    stored_shape = content.shape
    if content.ndim == 4 and content.shape[1] != 3 and content.shape[3] == 3:
        content = content.transpose(0, 3, 1, 2)
    if content.ndim != 4 or content.shape[1] != 3 or content.dtype != np.uint8 or not len(content):
        raise DataError(
            f"{path}: an array of shape {stored_shape} and type {content.dtype}; expected "
            "uint8 of shape (frames, height, width, 3) or (frames, 3, height, width)"
        )
    return np.ascontiguousarray(content)


def _read_by_pyav(path: Path) -> Video:
    need_pyav(
        f"{path}: to read {path.suffix or 'this file'}",
        ". Without it, give a folder of images, a GIF or WebP, or a uint8 array (.npy, .npz)",
    )
    import av

    try:
        if _is_cut_off(path):
            raise DataError(
                f"{path}: it is truncated: its frames end behind the end of the file; get it "
                "again, or save the frames that are left: ffmpeg -i FILE NEW.mp4"
            )
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise DataError(f"{path}: it has no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            frames = [upright_pixels(frame) for frame in container.decode(stream)]
            fps = float(stream.average_rate) if stream.average_rate else None
    except (av.error.FFmpegError, OSError) as error:
        raise DataError(f"{path}: it cannot be decoded ({error})") from error
    return Video(_stack(frames, path), fps)


def _is_cut_off(path: Path) -> bool:
    """Return whether the frames of an MP4 or QuickTime file lack their end, as in a download that
    broke off. FFmpeg decodes what is there and reports nothing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 0
        while start + 16 <= size:
            file.seek(start)
            length, kind, long = struct.unpack(">I4sQ", file.read(16))
            length = long if length == 1 else length
            if (start == 0 and kind != b"ftyp") or length < 8:  # 0: up to the end of the file
                return False
            start += length
            if kind == b"mdat" and start > size:
                return True
    return False


def upright_pixels(frame: Any) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of a decoded frame of PyAV as players show it.

    Phones store frames as the sensor reads them, and rotation and mirroring in the display matrix.
    """
    pixels = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    try:
        parts = {part.type.name: part for part in getattr(frame, "side_data", ())}
    except ValueError:  # beside one of a kind that is newer than PyAV, it only tells rotations
        quarters = round(frame.rotation / 90)  # counterclockwise, like np.rot90
        return np.rot90(pixels, quarters)
    if "DISPLAYMATRIX" in parts:  # x' = ax + cy, y' = bx + dy
        a, b, _, c, d = np.frombuffer(parts["DISPLAYMATRIX"], np.int32, 5).tolist()
        if abs(b) > abs(a):
            pixels, a, d = pixels.transpose(1, 0, 2), c, b
        pixels = pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
    return pixels


def _write_by_pillow(path: Path, pictures: list[NDArray[np.uint8]], fps: float) -> None:
    # GIF stores hundredths of a second, and viewers replace delays below two of them.
    duration = max(round(1000 / fps), 20)
    is_webp = path.suffix.lower() == ".webp"
    options: dict[str, Any] = {"quality": 85, "method": 2} if is_webp else {}
    first, *rest = map(Image.fromarray if is_webp else with_palette, pictures)
    first.save(path, save_all=True, append_images=rest, duration=duration, loop=0, **options)


def _write_by_pyav(path: Path, pictures: list[NDArray[np.uint8]], fps: float) -> None:
    need_pyav(f"{path}: to write .mp4", ". Without it, write .webp or .gif")
    import av

    height, width = pictures[0].shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("h264", rate=Fraction(fps).limit_denominator(1000))
        # Browsers play only half-resolution colors, which need even sides.
        stream.width, stream.height = width + width % 2, height + height % 2
        stream.pix_fmt = "yuv420p"
        for picture in each(pictures, "encoding frames"):
            even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
            frame = av.VideoFrame.from_ndarray(even, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _stack(frames: Iterable[NDArray[np.uint8]], source: Path) -> NDArray[np.uint8]:
    """Stack frames (H, W, 3) of one size as (T, 3, H, W)."""
    frames = list(frames)
    if not frames:
        raise DataError(f"{source}: it has no frames")
    sizes = sorted({frame.shape[1::-1] for frame in frames})
    if len(sizes) > 1:
        listed = ", ".join(f"{width}x{height}" for width, height in sizes)
        raise DataError(f"{source}: frames of different sizes, {listed}")
    return np.stack([frame.transpose(2, 0, 1) for frame in frames])
