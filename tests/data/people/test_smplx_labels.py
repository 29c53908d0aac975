"""overt/data/people/smplx_labels.py: the body of SMPL is found again as one of SMPL-X."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import real_files
import torch

from overt.commands.data import main
from overt.data.people.human_data import HumanData
from overt.data.people.smplx_labels import Converter, FitOptions, convert_labels
from overt.errors import DataError


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


def test_an_interrupted_fit_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    real_files.write_annotations(root / "four.npz", known)
    monkeypatch.setattr(Converter, "convert", convert)
    monkeypatch.setattr(Converter, "__init__", lambda self, options, device: None)
    arguments = (
        root / "four.npz", root / "four_smplx.npz", options(root, batch=1), torch.device("cpu"),
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        convert_labels(*arguments)
    errors = convert_labels(*arguments)
    assert [int(rows[0]) for rows in calls] == [2, 3]
    assert len(errors) == 4
    columns = HumanData.load(root / "four_smplx.npz").columns
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
    # A part of other rows, as an earlier version left it, is fitted again.
    parts = root / "rows_smplx.npz.parts"
    parts.mkdir()
    np.savez(parts / "00000000_00000001.npz", error_mm=np.zeros(3, np.float32))
    errors = convert_labels(source, out, options(root, batch=1), torch.device("cpu"))
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
