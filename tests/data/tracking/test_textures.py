"""Textures: photographs cut to squares, and patterns that are the same every time."""

import numpy as np
import pytest
from PIL import Image

from overt.data.tracking.textures import load_textures, make_texture
from overt.errors import DataError


def test_photographs_and_patterns(tmp_path):
    red = np.zeros((40, 70, 3), np.uint8)
    red[..., 0], red[..., 2] = 200, 3
    Image.fromarray(red).save(tmp_path / "wide.png")
    Image.fromarray(red[:10, :20]).save(tmp_path / "xsmall.png")
    textures = load_textures(str(tmp_path), 32, 2)
    # two squares of the first, one and a neighbour of the enlarged second, two patterns
    assert textures.shape == (6, 32, 32)
    assert (textures[:4] == 200 + 3 * 65536).all()


@pytest.mark.parametrize("number", range(6))
def test_patterns_repeat(number):
    first, second = make_texture(number, 64), make_texture(number, 64)
    assert first.shape == (64, 64, 3)
    assert (first == second).all()
    assert (first != make_texture(number + 6, 64)).any()
    assert first.std() > 0


def test_refusals(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        load_textures(str(tmp_path / "none"), 32, 1)
    with pytest.raises(DataError, match="holds no picture"):
        load_textures(str(tmp_path), 32, 1)
    with pytest.raises(DataError, match="made_textures"):
        load_textures(None, 32, 0)
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"broken\.jpg"):
        load_textures(str(tmp_path), 32, 0)
