"""overt complete and overt evaluate: a trained PCDiff in, implants, volumes and scores out."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_PCDIFF, SMALL_REFINE, SMALL_VOXELS, Small
from toy_runs import TOY, train_toy

from overt.cli import main
from overt.config import build_recipe, load
from overt.data.skulls.lists import rotation_matrix
from overt.data.skulls.nrrd import read_nrrd, write_nrrd
from overt.data.skulls.resampling import resample_mask
from overt.data.skulls.volumes import Volume

SMALL = [
    *SMALL_PCDIFF.sizes(),
    "evaluation.loss_times=1",
    "evaluation.cases=2",
    "training.device=cpu",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skulls, and the weights of a small model as the published code names them."""
    folder = tmp_path_factory.mktemp("complete")
    recipe = build_recipe(load(["recipe=pcdiff_tiny", *SMALL, f"data.root={folder / 'skulls'}"]))
    recipe.build_dataset()
    torch.manual_seed(0)
    state = {f"model.module.{key}": v for key, v in recipe.build_model().state_dict().items()}
    torch.save({"epoch": 0, "model_state": state}, folder / "epoch_0.pth")
    return folder


def complete(folder: Path, skull: str, *words: str) -> int:
    weights = ["--checkpoint", str(folder / "epoch_0.pth"), "--recipe", "pcdiff_tiny"]
    return main(["complete", str(folder / "skulls" / skull), *weights, *words, *SMALL])


def test_a_volume_gets_an_implant_of_its_own_shape(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Points of an untrained network are 500 mm apart.
    monkeypatch.setattr("overt.geometry.solid.LARGEST_CM2", float("inf"))
    out = tmp_path / "out"
    skull = "defective_skull/bilateral/000.nrrd"
    assert complete(folder, skull, "--samples", "2", "--output", str(out)) == 0
    assert "2 implant(s) of 32 points" in capsys.readouterr().out
    # As the published code writes them.
    assert np.load(out / "input.npy").shape == (1, 128, 3)
    sample = np.load(out / "sample.npy")
    assert sample.shape == (2, 160, 3)
    np.testing.assert_array_equal(sample[0, :128], np.load(out / "input.npy")[0])
    shift, scale = np.load(out / "shift.npy"), np.load(out / "scale.npy")
    assert (shift.shape, scale.shape) == ((1, 1, 3), (1, 1, 1))
    lines = (out / "sample_1.ply").read_bytes().split(b"end_header\n")
    stored = np.frombuffer(lines[1], "<f4").reshape(32, 3)
    voxels = (sample[1, 128:] * scale + shift)[0]  # as published; the file is in mm
    np.testing.assert_allclose(stored, voxels * 200 / 24, rtol=1e-4)
    volume, implant = read_nrrd(folder / "skulls" / skull), read_nrrd(out / "implant.nrrd")
    assert implant.values.shape == volume.values.shape
    np.testing.assert_array_equal(implant.affine, volume.affine)
    assert not (implant.mask & volume.mask).any()
    facts = json.loads((out / "case.json").read_text())
    assert facts["values"] == "a mask (two values), used as is"
    assert {"overt", "torch", "numpy", "python"} <= facts["versions"].keys()
    assert (facts["sampling"]["seed"], facts["sampling"]["ensemble"]) == (48, 2)
    assert facts["seconds"].keys() == {"read", "load", "sample", "solid"}
    assert facts["peak_memory"]["host_gib"] > 0.01
    with Image.open(out / "picture.png") as picture:
        assert picture.size == (4 * 220, 18 + 2 * 220)


@pytest.mark.parametrize("second", [SMALL_VOXELS, SMALL_REFINE], ids=lambda small: small.name)
def test_a_second_stage_makes_the_volumes(
    second: Small, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("exp_name=volumes", "training.num_steps=1", "checkpoint.every_steps=1")
    run = second.train(tmp_path, *words, "checkpoint.metric_name=null")
    skull, out = "defective_skull/bilateral/000.nrrd", tmp_path / "out"
    stage = ["--voxels", str(run / "checkpoints" / "latest"), "--close-holes", "4"]
    assert complete(folder, skull, "--samples", "1", "--out", str(out), *stage) == 0
    assert f"by {second.name}" in capsys.readouterr().out
    facts = json.loads((out / "case.json").read_text())
    assert facts["second_stage"].endswith("latest")
    assert facts["finishing"]["hole_mm"] == 4.0
    assert not (
        read_nrrd(out / "implant.nrrd").mask & read_nrrd(folder / "skulls" / skull).mask
    ).any()
    # Stages that were trained on differently oriented skulls do not fit together.
    made = ("data.synthetic", "evaluation.ensemble", "evaluation.cases")
    sizes = [word for word in SMALL if not word.startswith(made)]
    turned = [*sizes, "data.synthetic=null", "data.axes=RAS"]
    weights = ["--checkpoint", str(folder / "epoch_0.pth"), "--recipe", "pcdiff_tiny"]
    assert main(["complete", str(folder / "skulls" / skull), *weights, *stage, *turned]) == 2
    assert "with data.axes=LPS, --checkpoint" in capsys.readouterr().err
    # A first stage in its place is refused in words.
    wrong = ["--voxels", str(folder / "epoch_0.pth"), "--out", str(tmp_path / "wrong")]
    assert complete(folder, skull, "--samples", "1", *wrong) == 2
    assert "does not name its recipe; give a checkpoint folder" in capsys.readouterr().err


def permuted(source: Volume) -> Volume:
    """The same head along (z, x, -y), with flat voxels."""
    flat = np.repeat(source.values, 2, axis=0)[:, ::-1].transpose(2, 0, 1)
    step, side = 200 / 24, len(source.values)
    affine = np.zeros((4, 4))
    affine[2, 0], affine[0, 1], affine[1, 2] = step, step / 2, -step
    affine[:, 3] = [-step / 4, step * (side - 1), 0, 1]
    return Volume(flat, affine)


def oblique(source: Volume) -> Volume:
    """The same head in a left-handed grid along no axis of the patient."""
    affine = np.eye(4)
    affine[:3, :3] = rotation_matrix(np.radians([20, -15, 30])) * [4.0, -4.0, 5.0]
    middle = source.to_patient((np.array(source.values.shape) - 1) / 2)
    affine[:3, 3] = middle - affine[:3, :3] @ [39.5, 39.5, 31.5]
    grid = Volume(np.zeros((80, 80, 64), dtype=bool), affine)
    return grid.with_values(resample_mask(source.mask, source.affine, grid))


@pytest.mark.parametrize("regrid", [permuted, oblique])
def test_the_patient_s_frame_decides_where_the_implant_is(
    regrid: Callable[[Volume], Volume],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same head in another grid, turned, moved and anisotropic, gets the same implant."""
    monkeypatch.setattr("overt.geometry.solid.LARGEST_CM2", float("inf"))
    other = regrid(read_nrrd(folder / "skulls" / "defective_skull/bilateral/000.nrrd"))
    affine = other.affine.copy()
    affine[:3, 3] += [70, 30, -9]
    write_nrrd(tmp_path / "turned.nrrd", Volume(other.values, affine))
    moved = np.array([70, 30, -9])
    centers = []
    for path in (folder / "skulls/defective_skull/bilateral/000.nrrd", tmp_path / "turned.nrrd"):
        out = tmp_path / path.stem
        assert complete(folder, str(path), "--samples", "1", "--out", str(out)) == 0
        body = (out / "sample_0.ply").read_bytes().split(b"end_header\n")[1]
        points = np.frombuffer(body, "<f4").reshape(-1, 3)
        known = np.load(out / "input.npy")[0]
        extent = np.ptp(known, axis=0)
        np.testing.assert_allclose(np.ptp(known, axis=0).max(), 6.0, rtol=1e-4)
        centers.append((points.mean(axis=0), extent))
    # Not squashed: the network sees the same head, and its answer is in the patient's frame.
    np.testing.assert_allclose(centers[0][1], centers[1][1], rtol=0.12)
    scale = np.abs(centers[0][0]).max()
    np.testing.assert_allclose(centers[1][0] - moved, centers[0][0], atol=0.15 * scale)
    facts = json.loads((tmp_path / "turned" / "case.json").read_text())
    np.testing.assert_allclose(facts["affine_lps"], affine)


def test_mirror_and_interpolation_need_no_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skull = str(folder / "skulls" / "defective_skull/parietotemporal/000.nrrd")
    assert main(["complete", skull, "--mirror", "--out", str(tmp_path / "out")]) == 0
    assert "a mask (two values)" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").is_file()
    assert main(["complete", skull, "--interpolate", "--out", str(tmp_path / "top")]) == 0
    facts = json.loads((tmp_path / "top" / "case.json").read_text())
    assert facts["method"] == "interpolate"
    assert facts["hole_mm2"] > 1000
    small = str(folder / "skulls" / "defective_skull/bilateral/000.nrrd")
    assert main(["complete", small, "--interpolate", "--out", str(tmp_path / "small")]) == 1
    assert "expected a whole vault" in capsys.readouterr().err
    assert main(["complete", skull]) == 2
    assert "--checkpoint is missing" in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused_before_the_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    skull = str(folder / "skulls" / "defective_skull/parietotemporal/000.nrrd")
    assert main(["complete", skull, "--mirror", "--out", str(tmp_path / "file")]) == 2
    printed = capsys.readouterr()
    assert "is a file; name a new or existing folder" in printed.err
    assert not printed.out


def test_what_would_have_no_effect_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skull = str(folder / "skulls" / "defective_skull/parietotemporal/000.nrrd")
    words = ["complete", skull, "--mirror", "--out", str(tmp_path / "out")]
    assert main([*words, "--checkpoint", "x.pth", "--samples", "7"]) == 2
    assert "checkpoint, samples would have no effect" in capsys.readouterr().err
    assert main([*words, "--spacing", "3", "3", "3"]) == 2
    assert "has its own spacing" in capsys.readouterr().err
    for option in ("--min-wall", "--close-holes"):  # both would fill the head
        with pytest.raises(SystemExit, match="2"):
            main([*words, option, "200"])
        assert f"{option}: 200 is not a number from 0 to 25" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    numbers = (["--min-wall", "3"], ["--threshold", "0"])
    for given in (*numbers, ["--voxels", "x"], ["--no-vote"], ["--all-parts"]):
        assert complete(folder, "defective_skull/random_1/001_surf.npy", *given) == 2
        message = f"is a cloud of points, and {given[0]} would have no effect"
        assert message in capsys.readouterr().err


def test_an_empty_implant_is_no_success_and_no_older_one_is_taken_for_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skull = str(folder / "skulls" / "defective_skull/parietotemporal/000.nrrd")
    words = ["complete", skull, "--mirror", "--out", str(tmp_path / "out")]
    assert main([*words, "--clearance", "200"]) == 1
    assert "as --clearance asks" in capsys.readouterr().err
    slab = np.pad(np.ones((20, 20, 5), dtype=np.uint8), 4)
    np.save(tmp_path / "slab.npy", slab)
    slab_words = ["complete", str(tmp_path / "slab.npy"), *words[2:], "--spacing", "3", "3", "3"]
    assert main(slab_words) == 1
    assert "nothing was written: no gap of the skull has bone" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, "--close-holes", "1"]) == 0
    facts = json.loads((tmp_path / "out" / "case.json").read_text())
    assert facts["finishing"]["hole_mm"] == 1.0


def test_scattered_points_are_no_implant(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "out"
    skull = "defective_skull/bilateral/000.nrrd"
    assert complete(folder, skull, "--samples", "1", "--out", str(out)) == 1
    assert "32 points enclose no solid: they are too far apart" in caplog.text
    assert "is empty: the points of the sample enclose no volume" in capsys.readouterr().err
    assert (out / "sample_0.ply").is_file()
    assert not (out / "implant.stl").exists()


def test_a_cloud_gets_implants_and_no_volume(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    skull = "defective_skull/random_1/001_surf.npy"
    assert complete(folder, skull, "--output", str(out)) == 0
    assert (out / "sample_0.ply").is_file()
    assert not (out / "implant.nrrd").exists()


@pytest.mark.parametrize(
    ("skull", "message"),
    [
        ("absent.npy", "no skull"),
        ("absent.nrrd", "no scan"),
        ("train.csv", "expected a DICOM folder"),
    ],
)
def test_other_files_are_refused(
    skull: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(folder, skull) == 1
    assert message in capsys.readouterr().err


def test_a_network_that_diverged_is_named_as_the_cause(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = torch.load(folder / "epoch_0.pth")
    # Finite, or they would not be loaded.
    weights["model_state"] = {k: v * 1e16 for k, v in weights["model_state"].items()}
    torch.save(weights, tmp_path / "diverged.pth")
    model = ["--checkpoint", str(tmp_path / "diverged.pth"), "--recipe", "pcdiff_tiny"]
    skull = str(folder / "skulls/defective_skull/bilateral/000.nrrd")
    out = tmp_path / "out"
    assert main(["complete", skull, *model, "--samples", "1", "--out", str(out), *SMALL]) == 1
    assert "32 of 32 sampled points are non-finite" in capsys.readouterr().err
    assert not out.exists()
    made = ("data.synthetic", "evaluation.ensemble", "evaluation.cases")
    sizes = [word for word in SMALL if not word.startswith(made)]
    root = str(folder / "skulls")
    assert main(["data", "implants", root, *model, "--set", *sizes]) == 1
    assert "sampled points are non-finite" in capsys.readouterr().err
    assert not list(Path(root).rglob("*_implants.npy"))


def test_too_few_and_broken_points_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "skulls" / "few.npy", np.zeros((9, 3)))
    assert complete(folder, "few.npy") == 1
    assert "9 points, expected at least 128" in capsys.readouterr().err
    np.save(folder / "skulls" / "volume.npy", np.zeros((9, 8, 7)))
    assert complete(folder, "volume.npy") == 1
    assert (
        "a volume of shape (9, 8, 7): give its voxels in mm by --spacing" in capsys.readouterr().err
    )
    np.save(folder / "skulls" / "broken.npy", np.full((300, 3), np.nan))
    assert complete(folder, "broken.npy") == 1
    assert "is not finite" in capsys.readouterr().err


def test_other_recipes_complete_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_toy(tmp_path, "training.num_steps=1", "exp_name=toy")
    skull = str(folder / "skulls/implant/bilateral/000_surf.npy")
    checkpoint = str(tmp_path / "toy/checkpoints/latest")
    assert main(["complete", skull, "--checkpoint", checkpoint, "--package", str(TOY)]) == 2
    assert "cannot do this: it has no complete" in capsys.readouterr().err


def test_a_checkpoint_is_scored_case_by_case(folder: Path, tmp_path: Path) -> None:
    words = ["recipe=pcdiff_tiny", f"checkpoint={folder / 'epoch_0.pth'}", f"output={tmp_path}"]
    assert (
        main(
            [
                "evaluate",
                *words,
                f"data.root={folder / 'skulls'}",
                *SMALL,
                "evaluation.volumes=true",
            ]
        )
        == 0
    )
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"][:-8] for row in rows] == ["bilateral", "random_2"]
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert {"dsc", "bdsc", "chamfer_mm", "f_score", "val_loss"} <= set(scores)
    assert scores["ceiling_dsc"] > scores["dsc"]
    assert (tmp_path / "implants.png").is_file()
