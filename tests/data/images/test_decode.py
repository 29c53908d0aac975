"""Every color mode and orientation becomes upright RGB bytes; every damage a DataError."""

import io

import numpy as np
import pytest
from PIL import Image

from overt.data.images.decode import as_tensor, decode_image
from overt.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_lossless_color_comes_back(form):
    data = encoded(Image.fromarray(PIXELS), form, **({"lossless": True} if form == "WEBP" else {}))
    assert np.array_equal(decode_image(data, "x"), PIXELS)


def test_gray_of_8_and_16_bits_and_of_one():
    gray = PIXELS[..., 0]
    three = np.repeat(gray[..., None], 3, axis=2)
    assert np.array_equal(decode_image(encoded(Image.fromarray(gray)), "x"), three)
    deep = Image.fromarray(gray.astype(np.uint16) * 256 + 200)
    assert deep.mode.startswith("I")
    assert np.array_equal(decode_image(encoded(deep), "x"), three)
    black_and_white = Image.fromarray(gray > 127)
    result = decode_image(encoded(black_and_white), "x")
    assert np.array_equal(result, np.where(three > 127, 255, 0))


def test_transparency_is_dropped():
    alpha = RNG.integers(0, 256, (5, 7, 1), dtype=np.uint8)
    with_alpha = Image.fromarray(np.concatenate([PIXELS, alpha], axis=2), "RGBA")
    assert np.array_equal(decode_image(encoded(with_alpha), "x"), PIXELS)
    gray_alpha = Image.merge(
        "LA", [Image.fromarray(PIXELS[..., 0]), Image.fromarray(alpha[..., 0])]
    )
    assert np.array_equal(decode_image(encoded(gray_alpha), "x")[..., 2], PIXELS[..., 0])


def test_palette():
    palette = Image.fromarray(PIXELS).quantize(8)
    expected = np.asarray(palette.convert("RGB"))
    assert np.array_equal(decode_image(encoded(palette), "x"), expected)
    assert np.array_equal(decode_image(encoded(palette, transparency=0), "x"), expected)


def test_cmyk_jpeg():
    flat = Image.new("RGB", (16, 16), (200, 40, 90))
    result = decode_image(encoded(flat.convert("CMYK"), "JPEG", quality=100), "x")
    assert abs(result.astype(int) - np.array([200, 40, 90])).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_exif_orientation(orientation, form):
    """What the tag undoes: the stored picture is made from the upright one by the inverse."""
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = 255  # bright only at the upper left
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.transpose(1, 0, 2), 6: np.rot90(upright),
        7: upright.transpose(1, 0, 2)[::-1, ::-1], 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), form, exif=exif)
    result = decode_image(data, "x")
    assert result.shape == upright.shape
    assert abs(result.astype(int) - upright).max() < 30


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_unknown_orientation_and_damaged_exif_leave_the_pixels():
    exif = Image.Exif()
    exif[0x0112] = 77
    assert np.array_equal(decode_image(encoded(Image.fromarray(PIXELS), exif=exif), "x"), PIXELS)
    damaged = b"Exif\x00\x00II*\x00\xff\xff\xff\x7f"
    assert np.array_equal(decode_image(encoded(Image.fromarray(PIXELS), exif=damaged), "x"), PIXELS)


def test_one_pixel():
    assert decode_image(encoded(Image.fromarray(PIXELS[:1, :1])), "x").tolist() == [
        [PIXELS[0, 0].tolist()]
    ]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_cut_files_are_refused_by_name(form):
    data = encoded(Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)), form)
    for length in (0, 1, 10, 30, len(data) // 2):
        with pytest.raises(DataError, match=r"holiday\.jpg: not a readable image"):
            decode_image(data[:length], "holiday.jpg")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_damage_gives_pixels_or_a_data_error(form):
    """Flipped bytes anywhere: decoders may notice or not, but nothing else escapes."""
    data = encoded(Image.fromarray(RNG.integers(0, 256, (24, 24, 3), dtype=np.uint8)), form)
    for _ in range(150):
        broken = bytearray(data)
        for place in RNG.integers(0, len(data), 3):
            broken[place] = RNG.integers(0, 256)
        try:
            pixels = decode_image(bytes(broken), "x")
        except DataError:
            continue
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3


def test_other_formats_are_not_images_here():
    with pytest.raises(DataError, match=r"not a JPEG, PNG or WebP\)\. Save it as one of these"):
        decode_image(encoded(Image.fromarray(PIXELS), "BMP"), "x")


def test_a_tensor_of_its_own_that_may_be_written():
    tensor = as_tensor(decode_image(encoded(Image.fromarray(PIXELS)), "x"))
    assert tensor.shape == (3, 5, 7)
    tensor.zero_()


@pytest.mark.parametrize("turned", [1, 6])
def test_a_jpeg_comes_smaller_where_less_is_enough(turned):
    exif = Image.Exif()
    exif[0x0112] = turned
    smooth = Image.fromarray(PIXELS).resize((640, 320), Image.Resampling.BICUBIC)
    data = encoded(smooth, "JPEG", quality=95, exif=exif)
    asked = []

    def shrink(height: int, width: int) -> int:
        asked.append((height, width))
        return 4

    whole, small = decode_image(data, "x"), decode_image(data, "x", shrink)
    assert asked == [whole.shape[:2]] == [(640, 320) if turned == 6 else (320, 640)]
    assert small.shape[:2] == (whole.shape[0] // 4, whole.shape[1] // 4)
    height, width = small.shape[:2]
    means = whole.reshape(height, 4, width, 4, 3).mean(axis=(1, 3))
    assert np.abs(small - means).mean() < 1.5
    other = encoded(smooth)  # a PNG has no smaller self
    assert decode_image(other, "x", shrink).shape == (320, 640, 3)


def test_the_factor_holds_for_sides_it_does_not_divide():
    """Reduced by exactly this factor, and never beyond it."""
    sides = [*range(1, 70), 375, 500, 667, 1001]
    for factor in (2, 4, 8):
        for side in sides:
            data = encoded(Image.new("RGB", (side, 3 * side + 1)), "JPEG")
            small = decode_image(data, "x", lambda height, width, factor=factor: factor)
            least = tuple(-(-length // factor) for length in (3 * side + 1, side))
            assert all(np.array(small.shape[:2]) >= least)
            assert small.shape[:2] == least or side < factor
