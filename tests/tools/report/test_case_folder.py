"""overt/tools/report/case_folder.py: the files of a case agree in patient space."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import trimesh

from overt.data.skulls.nrrd import read_nrrd
from overt.data.skulls.scans import read_nifti
from overt.data.skulls.volumes import Volume
from overt.geometry.implant import finish
from overt.tools.report.case_folder import Case, clear_case, write_case

# Left-handed, oblique and anisotropic.
AFFINE = np.array([[0, 0.8, 0.6, 50], [1.0, 0, 0, -20], [0, -0.6, 0.8, 7], [0, 0, 0, 1]])
AFFINE[:3, :3] *= [1.0, 1.0, 1.5]


@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_mesh_and_volumes_are_in_one_place(flip: float, tmp_path: Path) -> None:
    affine = AFFINE @ np.diag([flip, 1, 1, 1])
    skull = np.zeros((24, 24, 16), dtype=bool)
    skull[2:22, 2:22, 2:5] = True
    implant = np.zeros_like(skull)
    implant[6:18, 6:18, 5:10] = True
    volume = Volume(skull, affine)
    samples = [implant, np.roll(implant, 1, axis=0)]
    finished = finish(implant, skull, volume.spacing)._replace(thin_voxels=7)
    case = Case("x", volume, finished, samples, {"seed": 1}, ["note"])
    written = write_case(tmp_path, case)
    assert {"implant.stl", "implant.obj", "implant.nrrd", "case.json", "report.html"} <= set(
        written
    )
    mesh = trimesh.load(tmp_path / "implant.stl")
    mesh.merge_vertices()
    assert mesh.is_watertight
    mm3 = float(implant.sum()) * 1.5
    assert mesh.volume == pytest.approx(mm3, rel=0.07)  # above 0: normals point outwards
    center = volume.to_patient(np.argwhere(implant)).mean(axis=0)
    np.testing.assert_allclose(mesh.center_mass, center, atol=0.1)
    for read, name in ((read_nrrd, "implant.nrrd"), (read_nifti, "implant.nii.gz")):
        back = read(tmp_path / name)
        np.testing.assert_allclose(back.affine, affine, atol=1e-5)
        np.testing.assert_array_equal(back.mask, implant)
    facts = json.loads((tmp_path / "case.json").read_text())
    assert facts["implant"]["open_edges"] == 0
    assert facts["implant"]["thin_voxels"] == 7
    assert facts["implant"]["volume_cm3"] == pytest.approx(mm3 / 1000)
    assert facts["samples"][0]["dice_with_other_samples"] == pytest.approx(11 / 12)
    assert facts["samples"][0]["mm_from_implant"] == 0
    assert 0.2 < facts["samples"][1]["mm_from_implant"] < 1
    page = (tmp_path / "report.html").read_text()
    for title in ("skull", "rim", "implant", "sample 0", "sample 1"):
        assert f"> {title}</label>" in page
    for words in ("volume, cm³", "wall thickness, median, mm", "voxels changed: holes"):
        assert f"<td>{words}</td>" in page
    assert "<th>Dice with other samples</th>" in page
    assert not re.search(r"<t[dh]>[a-z]+_", page)  # keys are for case.json


def test_nothing_of_an_earlier_case_stays(tmp_path: Path) -> None:
    written = ("implant.stl", "sample_4.ply", "sample_12.ply", "case.json", "implant.nii.gz")
    own = {"notes.txt", "implant.blend", "sample_final.ply"}
    for name in (*written, *own):
        (tmp_path / name).touch()
    clear_case(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == own


def test_an_empty_implant_has_no_mesh(tmp_path: Path) -> None:
    skull = np.zeros((12, 12, 12), dtype=bool)
    skull[3:9, 3:9, 3:9] = True
    nothing = finish(np.zeros_like(skull), skull, (1.0, 1.0, 1.0))
    case = Case("x", Volume(skull, np.eye(4)), nothing, [], {}, [])
    assert "implant.stl" not in write_case(tmp_path, case)
