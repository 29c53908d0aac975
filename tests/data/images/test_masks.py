"""overt/data/images/masks.py: masks of every kind that tools write."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overt.data.images.masks import read_mask_file
from overt.errors import DataError


def test_masks_of_every_kind(tmp_path: Path) -> None:
    """A cut-out has its mask in alpha, two levels are a mask at any depth, labels any palette."""
    person = np.zeros((4, 5), bool)
    person[1:3, 2:] = True
    gray = np.where(person, 255, 0).astype(np.uint8)
    colors = np.random.default_rng(0).integers(1, 256, (4, 5, 4), dtype=np.uint8)
    colors[..., 3] = np.where(person, 255, 30)
    black_labels = Image.fromarray(person.astype(np.uint8)).convert("P")
    black_labels.putpalette([0] * 768)
    inverted_palette = Image.fromarray((~person).astype(np.uint8)).convert("P")
    inverted_palette.putpalette([255, 255, 255, 0, 0, 0])
    images = {
        "cutout": Image.fromarray(colors),
        "opaque": Image.fromarray(gray).convert("RGBA"),
        "deep": Image.fromarray(person.astype(np.uint16)),
        "deepest": Image.fromarray(person.astype(np.uint16) * 65535),
        "two_levels": Image.fromarray(np.where(person, 2, 1).astype(np.uint8)),
        "labels": black_labels,
        "palette": inverted_palette,
        "bits": Image.fromarray(gray).convert("1"),
        "colors": Image.fromarray(gray).convert("RGB"),
    }
    for name, image in images.items():
        image.save(tmp_path / f"{name}.png")
        assert np.array_equal(read_mask_file(tmp_path / f"{name}.png"), person), name
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(tmp_path / "nobody.png")
    assert not read_mask_file(tmp_path / "nobody.png").any()
    (tmp_path / "broken.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r"JPEG, PNG or WebP \(another format, or damaged\)"):
        read_mask_file(tmp_path / "broken.png")
