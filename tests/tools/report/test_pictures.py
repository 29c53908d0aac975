"""overt/tools/report/pictures.py: pictures are in the page once, thinned out, with stills."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
from page_reader import Reader
from PIL import Image
from sample_runs import write_run

from overt.tools.report.page import build_page
from overt.tools.report.pictures import as_uri, is_moving, some, still
from overt.tools.report.run import Picture, open_run


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


def save(path: Path, frames: int) -> Path:
    images = [Image.new("RGB", (4, 3), (40 * number, 0, 0)) for number in range(frames)]
    images[0].save(path, save_all=True, append_images=images[1:])
    return path


def test_only_what_moves_has_a_still(tmp_path: Path) -> None:
    moving, resting = save(tmp_path / "a.gif", 3), save(tmp_path / "b.gif", 1)
    picture = tmp_path / "c.png"
    Image.new("RGB", (4, 3)).save(picture)
    assert [is_moving(path) for path in (moving, resting, picture)] == [True, False, False]
    first = still(moving)
    assert first is not None
    head, _, text = first.partition(",")
    assert head == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        assert image.size == (4, 3)
    assert still(resting) is None


@pytest.mark.parametrize(
    ("count", "most", "kept"), [(3, 5, [0, 1, 2]), (9, 1, [8]), (9, 3, [0, 4, 8])]
)
def test_some_pictures_are_first_last_and_between(count: int, most: int, kept: list[int]) -> None:
    pictures = [Picture("a", step, Path(f"{step}.png"), None) for step in range(count)]
    assert [one.step for one in some(pictures, most)] == kept


def test_a_file_becomes_part_of_the_page(tmp_path: Path) -> None:
    file = tmp_path / "a.PNG"
    file.write_bytes(b"bytes")
    assert as_uri(file) == "data:image/png;base64," + base64.b64encode(b"bytes").decode()
