"""overt data skulls and overt data prepare: what they print and what they leave behind."""

from pathlib import Path

import numpy as np
import pytest
from small_recipes import SMALL_PCDIFF, SMALL_REFINE

from overt.cli import main
from overt.data.skulls.nrrd import read_nrrd, write_nrrd
from overt.data.skulls.shapes import make_skull
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
    path = root / "implant" / "random_1" / "000.nrrd"
    write_nrrd(path, read_nrrd(path).with_values(np.zeros((24, 24, 24), dtype=bool)))
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


def test_implants_are_sampled_for_a_refinement_to_train_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("exp_name=points", "training.num_steps=1", "checkpoint.every_steps=1")
    run = SMALL_PCDIFF.train(tmp_path, *words, "checkpoint.metric_name=null")
    root = SMALL_PCDIFF.config(tmp_path).settings.data.root
    model = ["--checkpoint", str(run / "checkpoints" / "latest"), "--batch", "3"]
    sizes = ["--set", "evaluation.steps=2", "training.device=cpu"]
    linked = tmp_path / "Schädel (1)"
    linked.symlink_to(root)
    assert main(["data", "implants", str(linked), *model, "--samples", "2", *sizes]) == 0
    assert "2 implant(s) sampled for each of 5 skulls" in capsys.readouterr().out
    files = sorted(Path(root).rglob("*_implants.npy"))
    assert len(files) == 5
    assert np.load(files[0]).shape == (2, 32, 3)
    points = ("data.num_points=160", "data.num_implant_points=32")
    shown = SMALL_REFINE.recipe(tmp_path, "data.errors.sampled=1", "data.errors.lost=0", *points)
    sample = shown.build_dataset().sample(0, np.random.default_rng(0))
    assert sample.points.shape == (32, 3)
    # A model without this task is refused in words.
    other = SMALL_REFINE.train(tmp_path, *words, "checkpoint.metric_name=null", "exp_name=other")
    assert main(["data", "implants", root, "--checkpoint", str(other / "checkpoints/latest")]) == 2
    assert "pcdiff_refine_tiny" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("evaluation.ensemble=2", "is set by --samples"),
        ("++evaluation.cases=1", "stays null, as all skulls of --list are completed"),
        ("data.root=/other", "is set by ROOT"),
    ],
)
def test_settings_that_an_option_of_implants_has_are_refused(
    word: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--checkpoint", str(tmp_path), "--set", "evaluation.steps=2", word]
    assert main(["data", "implants", str(tmp_path), *words]) == 2
    key = word.partition("=")[0].lstrip("+")
    assert f"--set {word}: {key} {reason}; drop it from --set" in capsys.readouterr().err


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bone = make_skull(np.random.default_rng(0), 50)
    path = tmp_path_factory.mktemp("scan") / "head.nrrd"
    write_nrrd(path, Volume.of(np.where(bone, 900, -1000).astype(np.int16), (4.0, 4.0, 4.0)))
    return path


def test_defects_are_cut_out_of_a_scan_once(
    scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "skulls", str(tmp_path / "set"), "--scan", str(scan)]
    sizes = ["--voxel-mm", "4", "--points", "60"]
    assert main([*words, *sizes]) == 0
    printed = capsys.readouterr().out
    assert "bone from 300 on" in printed
    assert "2 rounds of 5 defects" in printed
    assert main([*words, *sizes, "--skulls", "3"]) == 0
    assert "1 written, 2 were there" in capsys.readouterr().out
    assert len((tmp_path / "set" / "test.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["--scan", "SCAN", "--kind", "shells"],
        ["--scan", "SCAN", "--side", "64"],
        ["--voxel-mm", "1.5"],
        ["--threshold", "200.0"],
        ["--spacing", "1.0", "1.0", "2.0"],
    ],
)
def test_options_of_the_other_source_are_refused(
    words: list[str], scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words[2:] if words[0] == "--scan" else words
    root = tmp_path / "set"
    words = [str(scan) if word == "SCAN" else word for word in words]
    assert main(["data", "skulls", str(root), *words]) != 0
    error = capsys.readouterr().err
    assert " ".join(given) in error
    assert f"drop {given[0]} or " in error
    assert not root.exists()


def test_an_unreadable_scan_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "head.nrrd"
    damaged.write_text("not a volume")
    for scan in (damaged, tmp_path / "missing.nrrd"):
        assert main(["data", "skulls", str(tmp_path / "set"), "--scan", str(scan)]) == 1
        error = capsys.readouterr().err
        assert str(scan) in error
        assert "Traceback" not in error
