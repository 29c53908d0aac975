"""Images with masks: pairs by name, splits, and masks that are refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overt.data.images.segmented import SegmentedImages, open_segmented, read_mask
from overt.errors import DataError


def write_pair(root: Path, name: str, mask: np.ndarray) -> None:
    for folder in ("images", "masks"):
        (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((*mask.shape, 3), np.uint8)).save(root / "images" / f"{name}.jpg")
    Image.fromarray(mask).save(root / "masks" / f"{name}.png")


def test_images_go_with_the_masks_of_their_names(tmp_path: Path) -> None:
    for number, name in enumerate(("a/x", "a/y", "b/x")):
        write_pair(tmp_path, name, np.full((4, 6), number, np.uint8))
    images = SegmentedImages(tmp_path)
    assert images.names == ["a/x.jpg", "a/y.jpg", "b/x.jpg"]
    for number in range(3):
        pixels, mask = images.read(number)
        assert pixels.shape == (3, 4, 6)
        assert mask.unique().tolist() == [number]
    learned, scored = open_segmented(tmp_path)
    assert sorted(learned.names + scored.names) == images.names
    assert len(scored) == 1


def test_splits_are_folders(tmp_path: Path) -> None:
    write_pair(tmp_path / "train", "x", np.zeros((2, 2), np.uint8))
    with pytest.raises(DataError, match="none of test, val"):
        open_segmented(tmp_path)
    write_pair(tmp_path / "val", "y", np.zeros((2, 2), np.uint8))
    assert [part.names for part in open_segmented(tmp_path)] == [["x.jpg"], ["y.jpg"]]


def test_palettes_are_numbers_and_colors_are_refused(tmp_path: Path) -> None:
    values = np.array([[0, 2], [255, 1]], np.uint8)
    palette = Image.fromarray(values, mode="P")
    palette.putpalette([7] * 768)
    palette.save(tmp_path / "palette.png")
    assert read_mask(tmp_path / "palette.png").tolist() == values.tolist()
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "colors.png")
    with pytest.raises(DataError, match="mode RGB; expected one channel"):
        read_mask(tmp_path / "colors.png")
    Image.fromarray(np.full((2, 2), 300, np.uint16)).save(tmp_path / "many.png")
    with pytest.raises(DataError, match="300; expected 0 to 254"):
        read_mask(tmp_path / "many.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="not a readable PNG"):
        read_mask(tmp_path / "broken.png")


def test_what_does_not_fit_together(tmp_path: Path) -> None:
    write_pair(tmp_path, "x", np.zeros((2, 2), np.uint8))
    with pytest.raises(DataError, match="at least 2"):
        open_segmented(tmp_path)
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "masks" / "x.png")
    with pytest.raises(DataError, match=r"3 x 3 .*2 x 2; save both in one size"):
        SegmentedImages(tmp_path).read(0)
    (tmp_path / "masks" / "x.png").rename(tmp_path / "masks" / "y.png")
    with pytest.raises(DataError, match=r"no mask, such as images/x.jpg; expected masks/x.png"):
        SegmentedImages(tmp_path)
