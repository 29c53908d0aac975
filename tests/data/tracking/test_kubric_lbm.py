"""overt/data/tracking/kubric_lbm.py: long sequences are cut; unusable ones are named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overt.data.tracking.kubric import frame_paths, list_sequences, read_frames, read_tracks
from overt.data.tracking.kubric_lbm import convert
from overt.data.tracking.synthetic_kubric import write_sequences


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    write_sequences(root, 2, frames=11, height=20, width=28, points=40)
    return root


def test_runs_of_a_sequence_become_sequences(source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "out", frames=4)
    names = [path.name for path in list_sequences(tmp_path / "out")]
    assert names == ["0000_00", "0000_01", "0001_00", "0001_01"]
    assert (len(result.written), result.kept, result.left_out) == (4, 0, {})
    whole = read_tracks(source / "0001")
    part = read_tracks(tmp_path / "out" / "0001_01")
    seen = whole.visible[:, 4]
    np.testing.assert_array_equal(part.coords_xy, whole.coords_xy[seen, 4:8])
    np.testing.assert_array_equal(part.visible, whole.visible[seen, 4:8])
    assert part.visible[:, 0].all()
    ours = read_frames(frame_paths(tmp_path / "out" / "0001_01"), range(4))
    theirs = read_frames(frame_paths(source / "0001"), range(4, 8))
    np.testing.assert_array_equal(ours, theirs)


def test_limits_hold_and_a_conversion_goes_on(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(source, out, frames=4, tracks=5, windows=1)
    assert [path.name for path in list_sequences(out)] == ["0000", "0001"]
    assert len(read_tracks(out / "0000").visible) == 5
    assert convert(source, out, frames=4, tracks=5, windows=1).kept == 2


def test_depths_are_taken_along_where_there_are_any(source: Path, tmp_path: Path) -> None:
    depths = source / "0000" / "depths"
    depths.mkdir()
    for number in range(11):
        Image.fromarray(np.full((20, 28), number, np.uint8)).save(depths / f"{number:03d}.png")
    convert(source, tmp_path / "out", frames=4)
    taken = tmp_path / "out" / "0000_01" / "depths"
    values = [int(np.asarray(Image.open(path))[0, 0]) for path in sorted(taken.iterdir())]
    assert values == [4, 5, 6, 7]
    assert not (tmp_path / "out" / "0001_00" / "depths").exists()


def test_what_cannot_be_used_is_named(source: Path, tmp_path: Path) -> None:
    (source / "0000" / "0000.npy").write_bytes(b"broken")
    content = np.load(source / "0001" / "0001.npy", allow_pickle=True).item()
    content["visibility"][:, 0] = True  # occluded
    np.save(source / "0001" / "0001.npy", np.array(content, dtype=object), allow_pickle=True)
    result = convert(source, tmp_path / "out", frames=4)
    assert set(result.left_out) == {"0000", "0001_00"}
    assert "no track is visible" in result.left_out["0001_00"]
    assert [path.name for path in result.written] == ["0001_01"]
    short = convert(source, tmp_path / "more", frames=24)
    assert short.left_out["0001"] == "11 frames, fewer than 24"
