"""overt/data/people/smplx_labels.py: the body of SMPL is found again as one of SMPL-X."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_files
import torch
from scipy.sparse import coo_matrix

from overt.commands.data import main
from overt.data.people.human_data import HumanData
from overt.data.people.smplx_labels import Converter, FitOptions, convert_labels
from overt.errors import DataError
from overt.geometry.body import SMPL_JOINTS, BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.body_files import load_body
from overt.geometry.body_transfer import VertexTransfer, load_transfer
from overt.geometry.rotation import axis_angle_to_matrix


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    real_files.write_bodies(folder)
    columns = real_files.rendered(folder, count=1, size=16)
    columns["smpl/body_pose"] *= 0.5
    real_files.write_annotations(folder / "train.npz", real_files.of_smpl(columns))
    return folder


def options(root: Path, **changed: object) -> FitOptions:
    names = ("SMPL_NEUTRAL.pkl", "SMPLX_NEUTRAL.npz", "smpl2smplx_deftrafo_setup.pkl")
    files = [str(root / name) for name in names]
    return replace(FitOptions(*files, iterations=8), **changed)  # type: ignore[arg-type]


def test_labels_are_fitted_at_real_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command; the body is the same in both files, so that the fit must find it."""
    np.save(root / "counted.npy", np.arange(0, 10475, 3))
    out, chosen = root / "train_smplx.npz", options(root)
    words = ["smplx-labels", str(root / "train.npz"), str(out), "--device", "cpu"]
    words += ["--smpl", chosen.smpl, "--smplx", chosen.smplx, "--transfer", chosen.transfer]
    assert main([*words, "--iterations", "12", "--vertices", str(root / "counted.npy")]) == 0
    assert "1 people, vertices within" in capsys.readouterr().out
    data, source = HumanData.load(out), HumanData.load(root / "train.npz")
    assert data.header == source.header
    np.testing.assert_array_equal(data.columns["keypoints2d"], source.columns["keypoints2d"])
    assert not (root / "train_smplx.npz.parts").exists()
    found, known = data.columns, source.columns
    np.testing.assert_allclose(found["smplx/transl"], known["smpl/transl"], atol=0.02)
    np.testing.assert_allclose(found["smplx/betas"], known["smpl/betas"], atol=0.3)
    body = known["smpl/body_pose"][:, :19]
    np.testing.assert_allclose(found["smplx/body_pose"][:, :19], body, atol=0.15)
    # Hands are absolute: flat as SMPL's are, although the mean hand of the file is bent.
    assert np.abs(found["smplx/left_hand_pose"]).mean() < 0.05


ROUGH = 0.008  # meters, standard deviation of each coordinate


def write_other_surfaces(folder: Path) -> FitOptions:
    """Write small bodies: SMPL's surface is rough, its vertices are others in another order."""
    real_files.write_annotations(
        folder / "train.npz", real_files.of_smpl(real_files.rendered(folder, count=2, size=16))
    )
    corners = len(capsule_body().v_template)
    smpl = real_files.body_arrays(corners + 60, SMPL_JOINTS, False)
    smplx = real_files.body_arrays(2 * corners + 9, 55, True)
    rng = np.random.default_rng(0)
    rough = rng.normal(scale=ROUGH, size=(corners, 3)).astype(np.float32)
    smpl["v_template"] = smpl["v_template"] + real_files.repeated(rough, corners + 60)
    order = rng.permutation(corners + 60)
    for name in ("v_template", "shapedirs", "posedirs", "weights"):
        smpl[name] = smpl[name][order]
    smpl["J_regressor"] = smpl["J_regressor"][:, order]
    position = np.argsort(order)  # of each vertex in that order
    smpl["f"] = position[smpl["f"].astype(np.int64)].astype(np.uint32)
    targets = np.arange(2 * corners + 9)
    matrix = coo_matrix(
        (np.ones(len(targets)), (targets, position[targets % corners])),
        shape=(len(targets), 2 * (corners + 60)),
    )
    paths = [folder / name for name in ("smpl.npz", "smplx.npz", "smpl2smplx.pkl")]
    np.savez(paths[0], **smpl)
    np.savez(paths[1], **smplx)
    paths[2].write_bytes(pickle.dumps({"mtx": matrix.tocsc()}))
    return FitOptions(*map(str, paths), iterations=12)


def test_of_a_surface_that_no_smplx_has_the_residual_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, out = write_other_surfaces(tmp_path), tmp_path / "out.npz"
    words = ["smplx-labels", str(tmp_path / "train.npz"), str(out), "--device", "cpu"]
    words += ["--smpl", chosen.smpl, "--smplx", chosen.smplx, "--transfer", chosen.transfer]
    assert main([*words, "--iterations", "12"]) == 0
    printed = re.search(
        r"2 people, vertices within ([\d.]+) mm on average, the worst ([\d.]+) mm \(row ([01])\); "
        r"0 above 20 mm",
        capsys.readouterr().out,
    )
    assert printed

    # Again, from the labels that were written: where each vertex is, and where it belongs.
    columns = HumanData.load(out).columns

    def posed(kind: str, file: str, *parts: np.ndarray) -> torch.Tensor:
        pose = np.concatenate([columns[f"{kind}/global_orient"][:, None], *parts], axis=1)
        turns = axis_angle_to_matrix(torch.tensor(pose))
        body = BodyModel(load_body(file, "body"))
        vertices = body(torch.tensor(columns[f"{kind}/betas"]), turns).vertices
        return vertices + torch.tensor(columns[f"{kind}/transl"])[:, None]

    face = np.zeros((2, 3, 3), np.float32)
    hands = [columns[f"smplx/{side}_hand_pose"] for side in ("left", "right")]
    found = posed("smplx", chosen.smplx, columns["smplx/body_pose"], face, *hands)
    mesh = posed("smpl", chosen.smpl, columns["smpl/body_pose"])
    transfer = load_transfer(chosen.transfer, "transfer", mesh.shape[1], found.shape[1])
    errors = 1000 * (found - VertexTransfer(transfer)(mesh)).norm(dim=-1).mean(-1)
    assert float(printed[1]) == pytest.approx(float(errors.mean()), abs=0.06)
    assert float(printed[2]) == pytest.approx(float(errors.max()), abs=0.06)
    assert int(printed[3]) == int(errors.argmax())

    # The roughness stays, the body below it is found.
    expected = 1000 * ROUGH * np.sqrt(8 / np.pi)  # mean length of such a vector
    assert 0.8 * expected < errors.min() <= errors.max() < 1.1 * expected
    np.testing.assert_allclose(columns["smplx/transl"], columns["smpl/transl"], atol=0.02)
    known = columns["smpl/body_pose"][:, :19]
    assert np.abs(columns["smplx/body_pose"][:, :19] - known).mean() < 0.05


@pytest.mark.parametrize("changed", ["nothing", "labels", "body", "transfer", "iterations"])
def test_an_interrupted_fit_goes_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """What other labels, files or options gave is fitted again."""
    calls: list[np.ndarray] = []

    def convert(self: Converter, data: HumanData, rows: np.ndarray) -> dict[str, np.ndarray]:
        if len(calls) == 2:
            calls.clear()
            raise KeyboardInterrupt
        calls.append(rows)
        count = len(rows)
        return {
            "smplx/betas": np.full((count, 10), rows[0], np.float32),
            "smplx/body_pose": np.zeros((count, 21, 3), np.float32),
            "error_mm": np.ones(count, np.float32),
        }

    known = real_files.of_smpl(real_files.rendered(root / "more", count=4, size=16))
    source, out = tmp_path / "four.npz", tmp_path / "four_smplx.npz"
    real_files.write_annotations(source, known)
    monkeypatch.setattr(Converter, "convert", convert)
    monkeypatch.setattr(Converter, "__init__", lambda self, options, device: None)
    chosen = options(root, batch=1)
    with pytest.raises(KeyboardInterrupt):
        convert_labels(source, out, chosen, torch.device("cpu"))
    other: dict[str, Any] = {
        "body": {"smpl": chosen.transfer},  # any other file
        "transfer": {"transfer": chosen.smpl},
        "iterations": {"iterations": 9},
    }
    if changed == "labels":
        known["smpl/transl"] += 1
        real_files.write_annotations(source, known)
    if changed != "nothing":  # all four are due, of which the third is interrupted again
        chosen = replace(chosen, **other.get(changed, {}))
        with pytest.raises(KeyboardInterrupt):
            convert_labels(source, out, chosen, torch.device("cpu"))
    errors = convert_labels(source, out, chosen, torch.device("cpu"))
    assert [int(rows[0]) for rows in calls] == [2, 3]
    assert len(errors) == 4
    assert not out.with_name("four_smplx.npz.parts").exists()
    columns = HumanData.load(out).columns
    assert columns["smplx/betas"][:, 0].tolist() == [0, 1, 2, 3]


def unlabeled(root: Path, name: str, has_smpl: list[int]) -> Path:
    """Write four people, of whom row 1 has no pose."""
    known = real_files.of_smpl(real_files.rendered(root / "rows", count=4, size=16))
    known["smpl/body_pose"][1] = np.nan
    path = root / name
    real_files.write_annotations(path, known | {"has_smpl": np.array(has_smpl)})
    return path


def test_rows_without_a_label_are_not_fitted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One NaN would spoil all people of its batch."""
    source, out = unlabeled(root, "rows.npz", [1, 0, 1, 1]), root / "rows_smplx.npz"
    fitted: list[int] = []

    def convert(self: Converter, data: HumanData, rows: np.ndarray) -> dict[str, np.ndarray]:
        fitted.extend(rows.tolist())
        poses = np.array(data.columns["smpl/body_pose"][rows, :21])
        return {"smplx/body_pose": poses, "error_mm": rows.astype(np.float32)}

    monkeypatch.setattr(Converter, "convert", convert)
    monkeypatch.setattr(Converter, "__init__", lambda self, options, device: None)
    # A part that an earlier version left is ignored, and removed.
    parts = root / "rows_smplx.npz.parts"
    parts.mkdir()
    np.savez(parts / "00000000_00000001.npz", error_mm=np.zeros(3, np.float32))
    errors = convert_labels(source, out, options(root, batch=1), torch.device("cpu"))
    assert not parts.exists()
    assert fitted == [0, 2, 3]
    assert (float(errors.mean()), int(errors.argmax())) == (pytest.approx(5 / 3), 3)
    columns = HumanData.load(out).columns
    assert columns["has_smpl"].tolist() == [1, 0, 1, 1]
    assert np.isnan(columns["smplx/body_pose"][1]).all()
    known = columns["smpl/body_pose"][[0, 2, 3], :21]
    np.testing.assert_array_equal(columns["smplx/body_pose"][[0, 2, 3]], known)


def test_labels_that_are_not_finite_are_refused_before_the_fit(root: Path) -> None:
    source, out = unlabeled(root, "nan.npz", [0, 1, 1, 1]), root / "nan_smplx.npz"
    cpu = torch.device("cpu")
    with pytest.raises(DataError, match=r"body_pose is non-finite in 1 of 3 .*row 1 \(imgs/000001"):
        convert_labels(source, out, options(root), cpu)
    assert not (root / "nan_smplx.npz.parts").exists()
    degrees = real_files.of_smpl(real_files.rendered(root / "degrees", count=2, size=16))
    degrees["smpl/body_pose"] = np.degrees(degrees["smpl/body_pose"])
    real_files.write_annotations(root / "degrees.npz", degrees)
    with pytest.raises(DataError, match=r"2 of 2 labeled rows .*row 0 .*smpl/body_pose .*radians"):
        convert_labels(root / "degrees.npz", out, options(root), cpu)
    nobody = unlabeled(root, "nobody.npz", [0, 0, 0, 0])
    with pytest.raises(DataError, match="has_smpl is 0 in all 4 rows"):
        convert_labels(nobody, out, options(root), cpu)


def test_wrong_files_are_named(root: Path) -> None:
    cpu, source = torch.device("cpu"), root / "train.npz"
    with pytest.raises(DataError, match="name another file"):
        convert_labels(source, source, options(root), cpu)
    swapped = options(root, smpl=options(root).smplx)
    with pytest.raises(DataError, match=r"has 55 joints.*SMPL has 24"):
        Converter(swapped, cpu)
    wrong = options(root, transfer=str(root / "smplx2smpl_deftrafo_setup.pkl"))
    with pytest.raises(DataError, match="takes 10475 vertices to 6890, expected 6890"):
        Converter(wrong, cpu)
    np.save(root / "beyond.npy", np.array([10475]))
    with pytest.raises(DataError, match="beyond the body's 10475"):
        Converter(options(root, vertices=str(root / "beyond.npy")), cpu)
