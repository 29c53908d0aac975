"""`overt data`: what it makes, what it refuses, and that it does without torch."""

import subprocess
import sys

import pytest

from overt.commands.data import main
from overt.data.tracking.kubric import frame_paths, list_sequences, read_frames, read_tracks
from overt.data.tracking.tapvid import FORMATS, TapVid
from overt.errors import DataError

SMALL = ["--sequences", "2", "--frames", "3", "--size", "16", "24", "--points", "12"]


def test_kubric_makes_a_readable_set(tmp_path, capsys):
    root = tmp_path / "new" / "set"
    assert main(["kubric", str(root), *SMALL, "--seed", "4"]) == 0
    assert "2 sequences of 3 frames, 16x24, 12 tracks each; 2 written" in capsys.readouterr().out
    sequences = list_sequences(root)
    assert len(sequences) == 2
    assert read_tracks(sequences[1]).coords_xy.shape == (12, 3, 2)
    assert read_frames(frame_paths(sequences[1]), range(3)).shape == (3, 3, 16, 24)


@pytest.mark.parametrize("dataset", FORMATS)
def test_tapvid_makes_a_readable_set(tmp_path, capsys, dataset):
    options = ["--dataset", dataset, "--videos", "2", *SMALL[2:]]
    assert main(["tapvid", str(tmp_path), *options]) == 0
    assert "2 videos of 3 frames, 16x24, 12 tracks each" in capsys.readouterr().out
    videos = TapVid(tmp_path, dataset)
    assert len(videos) == 2
    assert videos.video(1).video.shape == (3, 3, 256, 256)
    with pytest.raises(DataError, match="exists"):
        main(["tapvid", str(tmp_path), *options])


def test_a_second_run_changes_nothing(tmp_path, capsys):
    main(["kubric", str(tmp_path), *SMALL])
    capsys.readouterr()
    assert main(["kubric", str(tmp_path), *SMALL]) == 0
    assert "0 written, 2 were there" in capsys.readouterr().out


def test_other_settings_are_refused(tmp_path):
    main(["kubric", str(tmp_path), *SMALL])
    with pytest.raises(DataError, match="seed 0 there, 1 requested"):
        main(["kubric", str(tmp_path), *SMALL, "--seed", "1"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--sequences", "0"], "at least 1"),
        (["--seed", "-1"], "at least 0"),
        (["--size", "8", "128"], "at least 16"),
        (["--speed", "nan"], "not a number of at least 0"),
        (["--frames", "many"], "not a whole number"),
    ],
)
def test_impossible_numbers(tmp_path, capsys, option, message):
    with pytest.raises(SystemExit) as stopped:
        main(["kubric", str(tmp_path / "set"), *option])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_a_verb_is_needed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "VERB" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["kubric", *SMALL], ["tapvid", "--videos", "1"]])
def test_torch_is_not_imported(tmp_path, arguments):
    program = (
        "import sys; from overt.commands.data import main; "
        f"main({[*arguments, str(tmp_path)]!r}); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
