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
