"""`overt data people` writes what the recipes read."""

from pathlib import Path

import pytest

from overt.commands.data import main
from overt.data.people.human_data import HumanData


def test_people_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["people", str(tmp_path), "--name", "people_far", "--count", "2", "--size", "32"]
    assert main([*words, "--subset", "far", "--depth-maps"]) == 0
    assert "2 people, 32x32, camera" in capsys.readouterr().out
    data = HumanData.load(tmp_path / "preprocessed_datasets" / "people_far.npz")
    assert (data.columns["distortion_max"] < 1.2).all()
    folder = tmp_path / "datasets" / "people_far"
    for name in ("imgs/000001.jpg", "masks/000001.png", "depth/000001.png"):
        assert (folder / name).is_file()
