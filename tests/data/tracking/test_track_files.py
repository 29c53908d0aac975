"""Files around tracking; `tests/commands/test_track.py` has the files that are refused."""

import numpy as np
import pytest
from PIL import Image

from overt.data.tracking.track_files import read_mask, read_queries, write_tracks
from overt.errors import DataError


def test_tracks_and_queries_come_back(tmp_path):
    queries = np.array([[0, 1.5, 2]], np.float32)
    rows = np.ones((3, 1), np.float32)
    arrays = {"tracks_xy": np.zeros((3, 1, 2)), "visible": rows > 0, "visibility": rows}
    write_tracks(tmp_path, queries, arrays | {"confidence": rows})
    assert (tmp_path / "tracks.csv").read_text().count("\n") == 4
    (tmp_path / "queries.csv").write_text("t,x,y\n0,1.5,2\n")
    assert np.array_equal(read_queries(tmp_path / "queries.csv"), queries)


def test_a_mask_is_true_where_it_is_not_black(tmp_path):
    Image.fromarray(np.array([[0, 9]], np.uint8)).save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png").tolist() == [[False, True]]
    (tmp_path / "bad.png").write_text("nothing")
    with pytest.raises(DataError, match="not a readable picture"):
        read_mask(tmp_path / "bad.png")


def test_masks_of_other_formats_and_of_too_many_pixels(tmp_path, monkeypatch):
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "mask.bmp")
    assert read_mask(tmp_path / "mask.bmp").tolist() == [[False, True]]
    cutout = np.full((1, 2, 4), 255, np.uint8)
    cutout[0, 0, 3] = 0
    Image.fromarray(cutout).save(tmp_path / "cutout.png")
    assert read_mask(tmp_path / "cutout.png").tolist() == [[False, True]]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    Image.new("1", (3, 3)).save(tmp_path / "large.png")
    with pytest.raises(DataError, match=r"--mask .*not a readable picture"):
        read_mask(tmp_path / "large.png")


def test_a_byte_order_mark_is_skipped(tmp_path):
    for name, text in (
        ("bare.csv", "0,2,3\n"),
        ("head.csv", "t,x,y\n0,2,3\n"),
        ("q.json", "[[0,2,3]]"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_queries(tmp_path / name).tolist() == [[0, 2, 3]]


def test_a_heading_may_name_the_frame_and_lines_may_end_as_on_any_system(tmp_path):
    for name, text in (
        ("named.csv", "frame,x,y\n0,2,3\n\n1,4,5\n"),
        ("windows.csv", "0,2,3\r\n\r\n1,4,5\r\n"),
        ("old_mac.csv", "0,2,3\r1,4,5\r"),
    ):
        (tmp_path / name).write_bytes(text.encode())
        assert read_queries(tmp_path / name).tolist() == [[0, 2, 3], [1, 4, 5]]


@pytest.mark.parametrize("text", ["0;40;30\n", "t;x;y\n0;40,5;30,5\n", "0\t40\t30\n"])
def test_other_separators_are_named(text, tmp_path):
    (tmp_path / "queries.csv").write_text(text)
    with pytest.raises(DataError, match="separate them by commas"):
        read_queries(tmp_path / "queries.csv")
