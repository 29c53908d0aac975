"""overt data pack and kubric_lbm for sequences with tracks."""

from pathlib import Path

import pytest
from PIL import Image

from overt.cli import main
from overt.data.tracking.packed import find_sequences, read_frames


def test_sequences_are_made_cut_and_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, short, packed = (str(tmp_path / name) for name in ("long", "short", "packed"))
    scene = ["--frames", "9", "--size", "16", "20", "--points", "30"]
    assert main(["data", "kubric", long, "--sequences", "2", *scene]) == 0
    assert main(["data", "kubric_lbm", long, short, "--frames", "4"]) == 0
    assert "4 sequences of 4 frames written, 0 were there, 0 skipped" in capsys.readouterr().out
    assert main(["data", "pack", short, packed, "--storage", "files"]) == 0
    assert "4 sequences packed" in capsys.readouterr().out
    assert read_frames(find_sequences(packed)[3], range(4)).shape == (4, 3, 16, 20)
    assert main(["data", "pack", short, packed]) == 0
    assert "0 sequences packed, 4 were there" in capsys.readouterr().out


def test_what_is_left_out_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long, short = str(tmp_path / "long"), str(tmp_path / "short")
    scene = ["--frames", "3", "--size", "16", "20", "--points", "30"]
    main(["data", "kubric", long, "--sequences", "1", *scene])
    assert main(["data", "kubric_lbm", long, short]) == 0
    assert "skipped: 0000: 3 frames, fewer than 24" in capsys.readouterr().out


def test_options_of_the_other_kind_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sequences, images = str(tmp_path / "sequences"), str(tmp_path / "images")
    scene = ["--frames", "3", "--size", "16", "20", "--points", "30"]
    main(["data", "kubric", sequences, "--sequences", "1", *scene])
    main(["data", "images", images, "--classes", "1", "--per-class", "1"])
    assert main(["data", "pack", sequences, str(tmp_path / "out"), "--raw"]) != 0
    assert "--raw is for images" in capsys.readouterr().err
    assert main(["data", "pack", images, str(tmp_path / "out"), "--storage", "raw"]) != 0
    assert "--storage is for sequences" in capsys.readouterr().err


def test_moving_photographs_become_a_test_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (600, 520), (90, 120, 30)).save(folder / "plain.png")
    words = ["data", "photographs", str(tmp_path), str(folder), "--videos", "1", "--frames", "2"]
    assert main([*words, "--side", "20"]) == 2
    assert "multiple of 8" in capsys.readouterr().err
    assert main([*words, "--side", "16", "--points", "3"]) == 0
    assert "1 videos of 2 frames, 16x16, 3 tracks each" in capsys.readouterr().out
    assert (tmp_path / "tapvid_davis" / "tapvid_davis.pkl").is_file()
