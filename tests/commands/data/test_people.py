"""`overt data people` writes what the recipes read."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from overt.commands.data import main
from overt.data.people.human_data import HumanData
from overt.errors import DataError
from overt.geometry.body_transfer import load_transfer


def test_people_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["people", str(tmp_path), "--name", "people_far", "--count", "2", "--size", "32"]
    assert main([*words, "--subset", "far", "--depth-maps"]) == 0
    assert "2 people, 32x32, camera" in capsys.readouterr().out
    data = HumanData.load(tmp_path / "preprocessed_datasets" / "people_far.npz")
    assert (data.columns["distortion_max"] < 1.2).all()
    assert data.header.body == "anny"
    folder = tmp_path / "datasets" / "people_far"
    for name in ("imgs/000001.jpg", "masks/000001.png", "depth/000001.png"):
        assert (folder / name).is_file()


def test_help_shows_defaults_that_say_something(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["smplx-labels", "--help"])
    shown = capsys.readouterr().out
    assert "(default: 64)" in shown
    assert "None" not in shown


@pytest.mark.parametrize("name", ["../people", "a/b", "..", ".", " ", ""])
def test_a_name_stays_in_the_folder_of_the_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit):
        main(["people", str(tmp_path / "data"), "--name", name, "--count", "1"])
    assert f"{name!r} is not a name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_labels_to_fit_that_are_missing_are_named(tmp_path: Path) -> None:
    words = [word for name in ("smpl", "smplx", "transfer") for word in (f"--{name}", "file")]
    with pytest.raises(DataError, match=r"none\.npz: no such file; SOURCE"):
        main(["smplx-labels", str(tmp_path / "none.npz"), str(tmp_path / "out.npz"), *words])


def test_a_transfer_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = np.zeros((3, 8))  # four vertices, then their normals
    matrix[[0, 1, 2], [0, 2, 3]] = 1.0
    source, out = tmp_path / "smplx2smpl_deftrafo_setup.pkl", tmp_path / "smplx2smpl.npz"
    source.write_bytes(pickle.dumps({"mtx": matrix}))
    assert main(["body-transfer", str(source), str(out)]) == 0
    assert f"3 vertices from 4, at most 1 of each; set model.body.transfer={out}" in (
        capsys.readouterr().out
    )
    assert load_transfer(str(out), "k", 4, 3).corners.ravel().tolist() == [0, 2, 3]
