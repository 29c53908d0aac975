"""Written sequences are read back as they were made; sets are continued, never mixed."""

import json
import os
import socket

import numpy as np
import pytest

from overt.data.tracking.kubric import frame_paths, list_sequences, read_frames, read_tracks
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.errors import DataError
from overt.progress import told_to

SMALL = {"frames": 3, "height": 16, "width": 24, "points": 12, "seed": 5, "shapes": 2}


def content(root):
    """Every file below `root` with its bytes."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_what_is_written_is_what_is_read(tmp_path):
    write_sequences(tmp_path / "set", 2, **SMALL)
    sequences = list_sequences(tmp_path / "set")
    assert [path.name for path in sequences] == ["0000", "0001"]
    for index, sequence in enumerate(sequences):
        video, made = make_sequence(SceneSettings(**SMALL, speed=2.5), index)
        tracks = read_tracks(sequence)
        np.testing.assert_array_equal(tracks.coords_xy, made.coords_xy)
        np.testing.assert_array_equal(tracks.visible, made.visible)
        frames = read_frames(frame_paths(sequence), range(3))
        np.testing.assert_array_equal(frames, video.transpose(0, 3, 1, 2))


def test_the_file_says_visibility_and_means_occluded(tmp_path):
    write_sequences(tmp_path, 1, **SMALL)
    stored = np.load(tmp_path / "0000" / "0000.npy", allow_pickle=True).item()
    assert set(stored) == {"coords", "visibility"}
    assert stored["coords"].dtype == np.float32
    np.testing.assert_array_equal(stored["visibility"], ~read_tracks(tmp_path / "0000").visible)


def test_a_sequence_does_not_depend_on_how_many_there_are(tmp_path):
    write_sequences(tmp_path / "few", 1, **SMALL)
    write_sequences(tmp_path / "more", 3, **SMALL)
    assert content(tmp_path / "few" / "0000") == content(tmp_path / "more" / "0000")


def test_a_set_is_continued_and_what_is_there_is_kept(tmp_path):
    root = tmp_path / "set"
    assert len(write_sequences(root, 2, **SMALL)) == 2
    before = content(root)
    stamps = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert write_sequences(root, 2, **SMALL) == []
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    seen = []
    with told_to(lambda *progress: seen.append(progress)):
        assert [path.name for path in write_sequences(root, 3, **SMALL)] == ["0002"]
    assert seen == [("writing sequences", 3, 3)]
    assert before.items() <= content(root).items()


def test_an_interrupted_set_is_completed(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write_sequences(whole, 2, **SMALL)

    def interrupt(what, done, total):
        # As left behind by a process that was killed while it wrote the second one.
        left = broken / f".0001.{socket.gethostname()}-{os.getpid()}-00000000-0.partial"
        (left / "frames").mkdir(parents=True)
        (left / "frames" / "000.png").write_bytes(b"half")
        raise KeyboardInterrupt

    with told_to(interrupt), pytest.raises(KeyboardInterrupt):
        write_sequences(broken, 2, **SMALL)
    assert [path.name for path in list_sequences(broken)] == ["0000"]
    write_sequences(broken, 2, **SMALL)
    assert content(broken) == content(whole)


def test_other_content_is_not_mixed_with(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match="not mixed into other data"):
        write_sequences(tmp_path, 1, **SMALL)
    assert content(tmp_path) == {"precious.txt": b"mine"}


def test_another_set_is_not_mixed_with(tmp_path):
    write_sequences(tmp_path, 1, **SMALL)
    before = content(tmp_path)
    with pytest.raises(DataError, match="seed 5 there, 6 requested"):
        write_sequences(tmp_path, 2, **{**SMALL, "seed": 6})
    assert content(tmp_path) == before


def test_a_start_that_was_killed_at_once_is_no_other_content(tmp_path):
    (tmp_path / "synthetic.partial").write_text("{")
    assert len(write_sequences(tmp_path, 1, **SMALL)) == 1


def test_unreadable_manifest_is_refused(tmp_path):
    write_sequences(tmp_path, 1, **SMALL)
    manifest = tmp_path / "synthetic.json"
    assert json.loads(manifest.read_text())["points"] == 12
    manifest.write_text("{")
    with pytest.raises(DataError, match=r"synthetic\.json is not readable"):
        write_sequences(tmp_path, 1, **SMALL)


def test_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="Choose a new or empty folder"):
        write_sequences(tmp_path / "file", 1, **SMALL)
