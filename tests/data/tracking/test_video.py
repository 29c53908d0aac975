"""Videos from and to files: what was written is what is read, and what is broken is said."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from overt.data.tracking.video import read_video, write_video
from overt.data.tracking.video_files import read_frames
from overt.data.tracking.video_stream import stream_frames
from overt.errors import DataError


@pytest.fixture
def frames() -> NDArray[np.uint8]:
    """A bright square that moves over dark ground, (T, 3, H, W) with odd sides."""
    frames = np.full((12, 3, 21, 33), 20, dtype=np.uint8)
    for number, frame in enumerate(frames):
        frame[:, 8:14, 2 * number : 2 * number + 8] = np.array([250, 180, 60])[:, None, None]
    return frames


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
@pytest.mark.parametrize("fps", [5.0, 25.0])
def test_what_pillow_writes_is_read_again(
    suffix: str, fps: float, frames: NDArray[np.uint8], tmp_path: Path
) -> None:
    path = tmp_path / "new" / f"video{suffix}"
    write_video(path, frames, fps)
    video = read_video(path)
    assert video.fps == pytest.approx(fps)
    assert video.frames.shape == frames.shape
    assert np.abs(video.frames.astype(int) - frames).mean() < 6


def test_mp4_is_read_again(frames: NDArray[np.uint8], tmp_path: Path) -> None:
    pytest.importorskip("av")
    write_video(tmp_path / "video.mp4", frames, 25.0)
    video = read_video(tmp_path / "video.mp4")
    assert video.fps == pytest.approx(25)
    assert video.frames.shape == (12, 3, 22, 34)  # sides must be even
    assert np.abs(video.frames[:, :, :21, :33].astype(int) - frames).mean() < 10
    (tmp_path / "broken.mp4").write_bytes(b"no video at all")
    with pytest.raises(DataError, match="cannot be decoded"):
        read_video(tmp_path / "broken.mp4")


def set_display_matrix(path: Path, matrix: tuple[int, int, int, int]) -> None:
    """Store a rotation in the header of an MP4, as phones do: x' = ax + cy, y' = bx + dy."""
    a, b, c, d = (65536 * value for value in matrix)
    content = path.read_bytes()
    upright = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
    start = content.index(upright, content.index(b"tkhd"))
    rotated = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content[:start] + rotated + content[start + len(rotated) :])


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [
        ((0, 1, -1, 0), (0, -1)),  # clockwise
        ((-1, 0, 0, -1), (-1, -1)),
        ((0, -1, 1, 0), (-1, 0)),  # counterclockwise
        ((-1, 0, 0, 1), (0, -1)),  # mirrored
        ((1, 0, 0, -1), (-1, 0)),
        ((0, 1, 1, 0), (0, 0)),
        ((0, -1, -1, 0), (-1, -1)),
    ],
)
def test_every_reader_applies_the_rotation_of_a_film(
    matrix: tuple[int, int, int, int], corner: tuple[int, int], tmp_path: Path
) -> None:
    pytest.importorskip("av")
    frames = np.zeros((2, 3, 32, 48), np.uint8)
    frames[:, :, :8, :8] = 255  # the top left corner
    film = tmp_path / "film.mp4"
    write_video(film, frames, 10)
    set_display_matrix(film, matrix)
    size = (48, 32) if matrix[0] == 0 else (32, 48)
    whole = read_video(film).frames
    assert whole.shape == (2, 3, *size)
    row, column = corner
    assert whole[:, :, row, column].min() > 200
    assert np.mean(whole > 128) == pytest.approx(64 / (32 * 48), rel=0.2)
    np.testing.assert_array_equal(np.stack(list(stream_frames(film))), whole)
    np.testing.assert_array_equal(read_frames(film, [0, 1]), whole)


def test_pictures_of_a_camera_in_one_film_are_upright(tmp_path: Path) -> None:
    """FFmpeg attaches EXIF to such frames, which PyAV has no name for."""
    pytest.importorskip("av")
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :8] = 255
    exif = Image.Exif()
    exif[0x112] = 6  # viewers rotate it clockwise
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "JPEG", exif=exif)
    (tmp_path / "film.mjpeg").write_bytes(3 * picture.getvalue())
    frames = read_video(tmp_path / "film.mjpeg").frames
    assert frames.shape[0] == 3
    assert frames.shape[1:] in ((3, 32, 16), (3, 16, 32))  # older FFmpeg leaves EXIF alone
    assert frames[0, :, 0, -1 if frames.shape[2] == 32 else 0].min() > 200


def test_photographs_of_a_folder_are_upright(tmp_path: Path) -> None:
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :8] = 255
    exif = Image.Exif()
    exif[0x112] = 6  # viewers rotate it clockwise
    Image.fromarray(pixels).save(tmp_path / "0.jpg", exif=exif)
    frames = read_video(tmp_path).frames
    assert frames.shape == (1, 3, 32, 16)
    assert frames[0, :, 0, -1].min() > 200
    np.testing.assert_array_equal(read_frames(tmp_path, [0]), frames)


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".mp4"])
def test_any_frame_rate_is_written_or_refused(
    suffix: str, frames: NDArray[np.uint8], tmp_path: Path
) -> None:
    if suffix == ".mp4":
        pytest.importorskip("av")
    path = tmp_path / f"video{suffix}"
    slowest = {".gif": 1 / 655.35, ".webp": 1 / 16777.215, ".mp4": 0.001}[suffix]
    for slow in (1e-9, 5e-324):
        write_video(path, frames[:3], slow)
        assert read_video(path).fps == pytest.approx(slowest, rel=1e-3)
    write_video(path, frames[:3], 1e12)
    assert len(read_video(path).frames) == 3
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match=r"is not a positive finite number"):
            write_video(path, frames, wrong)
    with pytest.raises(DataError, match="got 0 frames to write"):
        write_video(path, frames[:0], 10)


def test_a_gif_that_cannot_hold_its_durations(tmp_path: Path) -> None:
    """Pillow writes equal frames as one, which lasts as long as all of them."""
    still = np.zeros((3, 3, 8, 8), np.uint8)
    with pytest.raises(DataError, match=r"cannot be stored as \.gif .*write \.webp or \.mp4"):
        write_video(tmp_path / "still.gif", still, 0.002)


def test_an_animated_webp_is_not_a_frame(frames: NDArray[np.uint8], tmp_path: Path) -> None:
    Image.fromarray(frames[0].transpose(1, 2, 0)).save(tmp_path / "0.webp", lossless=True)
    write_video(tmp_path / "1.webp", frames, 10)
    np.testing.assert_array_equal(read_video(tmp_path).frames, frames[:1])


def test_without_pyav_it_is_named(
    frames: NDArray[np.uint8], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "video.mp4").write_bytes(b"something")
    with pytest.raises(DataError, match=r"pip install av"):
        read_video(tmp_path / "video.mp4")
    with pytest.raises(DataError, match=r"pip install av"):
        write_video(tmp_path / "new.mp4", frames, 10)


def test_a_folder_of_images_in_the_order_of_their_numbers(
    frames: NDArray[np.uint8], tmp_path: Path
) -> None:
    for number, frame in enumerate(frames):
        Image.fromarray(frame.transpose(1, 2, 0)).save(tmp_path / f"frame{number}.png")
    (tmp_path / "notes.txt").write_text("not a frame")
    video = read_video(tmp_path)
    np.testing.assert_array_equal(video.frames, frames)
    assert video.fps is None


@pytest.mark.parametrize("channels_last", [False, True])
def test_arrays(channels_last: bool, frames: NDArray[np.uint8], tmp_path: Path) -> None:
    stored = frames.transpose(0, 2, 3, 1) if channels_last else frames
    np.save(tmp_path / "video.npy", stored)
    np.savez(tmp_path / "one.npz", anything=stored)
    np.savez(tmp_path / "two.npz", video=stored, depth=np.zeros(3))
    for name in ("video.npy", "one.npz", "two.npz"):
        np.testing.assert_array_equal(read_video(tmp_path / name).frames, frames)


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".apng"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_video_that_is_cut_off_is_refused(
    suffix: str, share: float, frames: NDArray[np.uint8], tmp_path: Path
) -> None:
    """A download that broke off is not a shorter video."""
    noise = np.random.default_rng(0).integers(0, 60, frames.shape, dtype=np.uint8)
    pictures = [Image.fromarray(frame.transpose(1, 2, 0)) for frame in frames + noise // 4]
    path = tmp_path / f"video{suffix}"
    format = {".apng": "PNG"}.get(suffix)
    pictures[0].save(path, format, save_all=True, append_images=pictures[1:], duration=40)
    assert len(read_video(path).frames) == 12
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(DataError, match=rf"video{suffix}: it cannot be decoded"):
        read_video(path)


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_film_that_is_cut_off_is_refused(share: float, tmp_path: Path) -> None:
    """Films for the web begin with their index, so FFmpeg decodes what there is of the frames."""
    av = pytest.importorskip("av")
    path = tmp_path / "film.mp4"
    pixels = np.random.default_rng(0).integers(0, 255, (12, 32, 48, 3), dtype=np.uint8)
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("h264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for frame in pixels:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    assert len(read_video(path).frames) == 12
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(DataError, match=r"film\.mp4: it is truncated"):
        read_video(path)


@pytest.mark.parametrize("suffix", [".tif", ".png"])
def test_pages_of_one_image_are_frames(
    suffix: str, frames: NDArray[np.uint8], tmp_path: Path
) -> None:
    """A stack of a microscope, in 16 bits, or an animated PNG."""
    path = tmp_path / f"stack{suffix}"
    gray = frames[:, 0].astype(np.uint16) * 256 if suffix == ".tif" else frames[:, 0]
    first, *rest = [Image.fromarray(page) for page in gray]
    first.save(path, save_all=True, append_images=rest)
    np.testing.assert_array_equal(read_video(path).frames, frames[:, :1].repeat(3, 1))


def test_hidden_files_are_no_frames(frames: NDArray[np.uint8], tmp_path: Path) -> None:
    for number, frame in enumerate(frames):
        Image.fromarray(frame.transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
        (tmp_path / f"._{number}.png").write_bytes(b"\0\5\x16\7 of macOS")
    np.testing.assert_array_equal(read_video(tmp_path).frames, frames)


def test_a_gif_may_have_something_behind_its_end(frames: NDArray[np.uint8], tmp_path: Path) -> None:
    write_video(tmp_path / "video.gif", frames, 10)
    with (tmp_path / "video.gif").open("ab") as file:
        file.write(b"\0\0more")
    assert len(read_video(tmp_path / "video.gif").frames) == 12


def test_what_cannot_be_read_is_said(tmp_path: Path, frames: NDArray[np.uint8]) -> None:
    def image(path: Path, width: int, height: int) -> None:
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (width, height)).save(path)

    (tmp_path / "broken.gif").write_bytes(b"GIF89a and then nothing")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY nonsense")
    (tmp_path / "broken.npz").write_bytes(b"PK nonsense")
    np.save(tmp_path / "floats.npy", frames.transpose(0, 2, 3, 1) / 255)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "none.npy", frames[:0])
    np.save(tmp_path / "thin.npy", frames[:, :, :1])
    np.savez(tmp_path / "two.npz", a=frames, b=frames)
    (tmp_path / "empty").mkdir()
    image(tmp_path / "mixed" / "0.png", 8, 6)
    image(tmp_path / "mixed" / "1.png", 6, 8)
    image(tmp_path / "bad" / "0.png", 8, 6)
    (tmp_path / "bad" / "1.png").write_bytes(b"no image")
    image(tmp_path / "single.png", 8, 6)
    cases = {
        "nowhere.gif": "no such file",
        "broken.gif": "cannot be decoded",
        "broken.npy": "not a readable array",
        "broken.npz": "not a readable array",
        "objects.npy": "not a readable array",
        "floats.npy": r"shape \(12, 21, 33, 3\) and type float64; expected uint8",
        "none.npy": r"shape \(0, 3, 21, 33\)",
        "thin.npy": "at least 2 x 2",
        "two.npz": "it holds a, b; name the array `video`",
        "empty": "it has no images",
        "mixed": "frames of different sizes, 6x8, 8x6",
        "bad": r"1\.png: not a readable image",
        "single.png": "is a single image",
    }
    for name, expected in cases.items():
        with pytest.raises(DataError, match=expected):
            read_video(tmp_path / name)
    with pytest.raises(DataError, match=r"\.gif, \.webp, \.mp4"):
        write_video(tmp_path / "video.avi", frames, 10)
