"""overt/tools/report/pictures.py: what is put into the page, and what is not."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from sample_runs import Reader, write_run

from overt.tools.report import pictures
from overt.tools.report.page import build_page
from overt.tools.report.reading import open_run
from overt.tools.report.run import Picture


def test_half_a_picture_does_not_spoil_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "a", monkeypatch)
    for picture in (folder / "pictures").glob("tracks*"):
        picture.write_bytes(b"\x89PNG")
    page = build_page([open_run(folder)])
    assert "film" in page
    assert "tracks" not in Reader(page).words


def test_pictures_are_put_in_once_and_no_more_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "a", monkeypatch)
    page = build_page([open_run(folder)], most_pictures=2)
    assert len(re.findall("data:image/gif;base64,", page)) == 2
    data = json.loads(Reader(page).data)
    gallery = next(one for one in data["galleries"].values() if one["steps"])
    assert gallery["steps"] == [10, 40]


def animated(path: Path, frames: int) -> Path:
    images = [Image.new("RGB", (8, 6), (40 * number, 0, 0)) for number in range(frames)]
    images[0].save(path, save_all=True, append_images=images[1:])
    return path


def test_what_moves_has_a_still(tmp_path: Path) -> None:
    moving, resting = animated(tmp_path / "a.gif", 3), animated(tmp_path / "b.gif", 1)
    still = pictures.still(moving)
    assert still is not None
    assert still.startswith("data:image/jpeg;base64,")
    assert pictures.still(resting) is None
    assert not pictures.is_moving(tmp_path / "c.mp4")


def test_what_cannot_be_opened_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, torn = animated(tmp_path / "good.gif", 3), animated(tmp_path / "torn.gif", 3)
    torn.write_bytes(torn.read_bytes()[:10])
    (tmp_path / "text.png").write_text("hello")
    names = ("good.gif", "torn.gif", "text.png", "gone.png", "film.mp4")
    shown = [name for name in names if pictures.opens(Picture("x", 1, tmp_path / name))]
    assert shown == ["good.gif", "film.mp4"]  # whether a film opens, the browser finds out
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert not pictures.opens(Picture("x", 1, good))  # a bomb of pixels


@pytest.mark.parametrize(
    ("most", "expected"), [(1, [9]), (2, [0, 9]), (3, [0, 4, 9]), (20, range(10))]
)
def test_some_of_many_pictures_include_the_last(most: int, expected: list[int]) -> None:
    many = [Picture("x", step, Path()) for step in range(10)]
    assert [picture.step for picture in pictures.evenly_spaced(many, most)] == list(expected)
