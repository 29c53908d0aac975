"""16-bit pictures keep their upper bits, wherever frames are read."""

import numpy as np
import pytest
from PIL import Image

from overt.data.pictures import to_rgb
from overt.data.tracking.kubric import read_frames
from overt.data.tracking.textures import cut_squares
from overt.data.tracking.video import read_video


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


def test_color_and_transparency():
    colors = np.arange(4 * 4 * 4, dtype=np.uint8).reshape(4, 4, 4)
    assert (to_rgb(Image.fromarray(colors, "RGBA")) == colors[..., :3]).all()
