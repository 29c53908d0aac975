"""overt data skulls and overt data prepare: what they print and what they leave behind."""

from pathlib import Path

import numpy as np
import pytest

from overt.cli import main
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.volumes import Volume

SIZES = ["--side", "24", "--points", "60"]


def test_synthetic_skulls_are_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "set")
    assert main(["data", "skulls", root, "--skulls", "2", *SIZES]) == 0
    assert "2 skulls with 5 defects each" in capsys.readouterr().out
    assert main(["data", "skulls", root, "--skulls", "2", *SIZES]) == 0
    assert "0 written, 2 were there" in capsys.readouterr().out


def test_volumes_are_prepared_and_problems_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    main(["data", "skulls", str(root), "--skulls", "1", *SIZES])
    for cloud in root.rglob("*_surf.npy"):
        cloud.unlink()
    empty = Volume.of(np.zeros((24, 24, 24), dtype=bool), (1.0, 1.0, 1.0))
    write_nrrd(root / "implant" / "random_1" / "000.nrrd", empty)
    capsys.readouterr()
    assert main(["data", "prepare", str(root), "--points", "40"]) == 1
    printed = capsys.readouterr().out
    assert "10 clouds of 40 points written, 0 were there, 1 could not be made" in printed
    assert "random_1/000.nrrd: the volume has no voxels" in printed
    assert np.load(root / "implant/bilateral/000_surf.npy").shape == (40, 3)


def test_a_folder_without_volumes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "prepare", str(tmp_path)]) == 1
    assert "holds no volumes" in capsys.readouterr().err
