"""16-bit pictures keep their upper bits, wherever frames are read; GIFs keep small things."""

import numpy as np
import pytest
from PIL import Image

from overt.data.pictures import to_rgb, to_upright_rgb
from overt.data.tracking.kubric import read_frames
from overt.data.tracking.textures import cut_squares
from overt.data.tracking.video import read_video, write_video
from overt.run.log import as_gif


@pytest.fixture
def deep(tmp_path):
    """A folder with one PNG of 16 bits that grows from black to white."""
    ramp = np.linspace(0, 65535, 16 * 16).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "frame.png")
    return tmp_path, (ramp >> 8).astype(np.uint8)


def test_sixteen_bits(deep):
    folder, expected = deep
    with Image.open(folder / "frame.png") as image:
        pixels = to_rgb(image)
    assert pixels.dtype == np.uint8
    assert (pixels == expected[..., None]).all()


def test_every_reader_of_frames(deep):
    folder, expected = deep
    assert (read_frames([folder / "frame.png"], [0])[0] == expected).all()
    assert (read_video(folder)[0][0] == expected).all()
    assert (cut_squares(folder / "frame.png", 16)[0] == expected[..., None]).all()


def test_floats_are_refused():
    """Whether 1.0 is white or nearly black, nobody knows."""
    with pytest.raises(ValueError, match="white is not defined"):
        to_rgb(Image.fromarray(np.ones((2, 2), np.float32)))


def test_color_and_transparency():
    colors = np.arange(4 * 4 * 4, dtype=np.uint8).reshape(4, 4, 4)
    assert (to_rgb(Image.fromarray(colors, "RGBA")) == colors[..., :3]).all()


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_upright(suffix, tmp_path):
    """Orientation 6: viewers rotate clockwise, so the top left corner moves to the top right."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :8] = 255
    exif = Image.Exif()
    exif[0x112] = 6
    Image.fromarray(pixels).save(tmp_path / f"frame{suffix}", exif=exif)
    with Image.open(tmp_path / f"frame{suffix}") as image:
        upright = to_upright_rgb(image)
    assert upright.shape == (32, 16, 3)
    assert upright[:6, 10:].min() > 200
    assert upright[10:].max() < 50


def test_damaged_exif_is_ignored(tmp_path):
    pixels = np.zeros((16, 32, 3), np.uint8)
    damaged = b"Exif\0\0not the header of a TIFF"
    Image.fromarray(pixels).save(tmp_path / "frame.jpg", exif=damaged)
    with Image.open(tmp_path / "frame.jpg") as image:
        assert to_upright_rgb(image).shape == pixels.shape


@pytest.mark.parametrize("writer", ["log", "video"])
def test_a_gif_keeps_the_colors_of_small_things(writer, tmp_path):
    """Points that are drawn into a photograph, which has other colors and many of them."""
    x, y = np.meshgrid(np.linspace(0, 1, 128), np.linspace(0, 1, 128))
    noise = np.random.default_rng(0).normal(0, 10, (128, 128))
    brown = np.stack([80 + 120 * x + noise, 50 + 90 * y + noise, 30 + 60 * x * y + noise])
    picture = brown.clip(0, 255).astype(np.uint8)  # (3, H, W)
    colors = [(0, 0, 255), (255, 0, 255), (0, 255, 0), (255, 255, 0), (0, 255, 255)]
    for index, color in enumerate(colors):
        picture[:, 20 * index : 20 * index + 3, 60:63] = np.reshape(color, (3, 1, 1))
    file = tmp_path / "points.gif"
    if writer == "log":
        file.write_bytes(as_gif(picture[None], fps=10))
    else:
        write_video(file, picture[None], 10)
    with Image.open(file) as gif:
        written = to_rgb(gif)
    for index, color in enumerate(colors):
        assert np.abs(written[20 * index + 1, 61] - np.asarray(color, float)).max() < 16
    assert np.abs(written - picture.transpose(1, 2, 0).astype(float)).mean() < 6
