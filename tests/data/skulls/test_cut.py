"""overt/data/skulls/cut.py: defects cut out of a scan are cases like those of the data set."""

from pathlib import Path

import numpy as np
import pytest
from small_recipes import SMALL_PCDIFF

from overt.data.skulls.cut import read_complete, write_rounds
from overt.data.skulls.defects import KINDS
from overt.data.skulls.lists import SkullList
from overt.data.skulls.nrrd import read_nrrd, write_nrrd
from overt.data.skulls.prepare import prepare
from overt.data.skulls.shapes import make_skull
from overt.data.skulls.volumes import Volume
from overt.errors import DataError
from overt.geometry.vault import vault_middle
from overt.recipes.pcdiff.data import HeldOutCases

SIDE, VOXEL_MM, POINTS = 80, 2.5, 800


@pytest.fixture(scope="module")
def skull() -> Volume:
    """The head in LPS, off the origin, its walls thick enough for slices twice as far apart."""
    affine = np.diag([VOXEL_MM, VOXEL_MM, VOXEL_MM, 1.0])
    affine[:3, 3] = (-90.0, 40.0, -300.0)
    bone = make_skull(np.random.default_rng(3), SIDE)
    for axis in range(3):
        bone = bone | np.roll(bone, 1, axis)
    return Volume(bone, affine)


@pytest.fixture(scope="module")
def scan(skull: Volume, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same head as CT: flipped and swapped axes, slices twice as far apart, and a table."""
    values = np.where(skull.values, 900, -1000).astype(np.int16)
    values[5:40, -2:, 4:60] = 700  # does not touch the skull
    flipped = values[::-1, ::-1, ::2].transpose(1, 0, 2)
    last = VOXEL_MM * (SIDE - 1)
    affine = np.eye(4)
    affine[:3, :3] = [[0, -VOXEL_MM, 0], [-VOXEL_MM, 0, 0], [0, 0, 2 * VOXEL_MM]]
    affine[:3, 3] = skull.affine[:3, 3] + (last, last, 0)
    path = tmp_path_factory.mktemp("scan") / "head.nrrd"
    write_nrrd(path, Volume(np.ascontiguousarray(flipped), affine))
    return path


@pytest.fixture(scope="module")
def root(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cut") / "set"
    complete, how = read_complete(scan, VOXEL_MM)
    assert "Hounsfield units from -1000 to 900" in how
    assert write_rounds(root, scan, complete, 2, POINTS) == 2
    assert write_rounds(root, scan, complete, 2, POINTS) == 0
    return root


def test_the_skull_is_where_it_was_along_lps(skull: Volume, scan: Path) -> None:
    complete, _ = read_complete(scan, VOXEL_MM)
    np.testing.assert_array_equal(complete.affine[:3, :3], VOXEL_MM * np.eye(3))
    indices = np.argwhere(complete.values)
    nearest = np.round(skull.to_indices(complete.to_patient(indices))).astype(int)
    # Half of the slices are interpolated.
    assert skull.values[tuple(np.clip(nearest, 0, SIDE - 1).T)].mean() > 0.85
    assert 0.85 < len(indices) / skull.values.sum() < 1.1


def test_defective_skull_and_implant_are_the_complete_skull(root: Path) -> None:
    for number in ("000", "001"):
        complete = read_nrrd(root / "complete_skull" / f"{number}.nrrd")
        for kind in KINDS:
            defective, implant = (
                read_nrrd(root / part / kind / f"{number}.nrrd")
                for part in ("defective_skull", "implant")
            )
            np.testing.assert_array_equal(implant.affine, complete.affine)
            np.testing.assert_array_equal(defective.mask | implant.mask, complete.mask)
            assert not (defective.mask & implant.mask).any()
            assert 0.005 < implant.mask.sum() / complete.mask.sum() < 0.3, kind


def test_defects_are_at_their_place_in_the_patient(root: Path) -> None:
    for number in ("000", "001"):
        complete = read_nrrd(root / "complete_skull" / f"{number}.nrrd")
        middle = vault_middle(complete.to_patient(np.argwhere(complete.mask)))
        towards = {}
        for kind in KINDS:
            implant = read_nrrd(root / "implant" / kind / f"{number}.nrrd")
            towards[kind] = implant.to_patient(np.argwhere(implant.mask)).mean(axis=0) - middle
        assert np.argmax(np.abs(towards["bilateral"])) == 2
        assert towards["bilateral"][2] > 40  # up
        assert towards["frontoorbital"][1] < -40  # toward the face
        assert abs(towards["parietotemporal"][0]) > 40  # to one side


def test_rounds_differ_and_are_all_held_out(root: Path) -> None:
    assert len(SkullList(root / "test.csv", "skullbreak")) == 10
    assert (root / "train.csv").read_text() == ""
    first, second = (read_nrrd(root / f"implant/bilateral/00{n}.nrrd").mask for n in (0, 1))
    assert (first != second).any()
    done = prepare(root, "skullbreak", POINTS)  # as benchmarks/skulls.py does
    assert (done.written, done.kept) == (0, 22)
    assert (root / "train.csv").read_text() == ""


def test_a_list_that_a_user_shortened_stays_so(root: Path, scan: Path) -> None:
    rows = (root / "test.csv").read_text()
    shorter = rows.splitlines(keepends=True)[0]
    (root / "test.csv").write_text(shorter)
    try:
        write_rounds(root, scan, read_complete(scan, VOXEL_MM)[0], 2, POINTS)
        assert (root / "test.csv").read_text() == shorter
    finally:
        (root / "test.csv").write_text(rows)


def test_the_evaluation_of_pcdiff_reads_the_cases(root: Path, tmp_path: Path) -> None:
    settings = SMALL_PCDIFF.recipe(
        tmp_path, f"data.root={root}", "data.synthetic=null", "evaluation.cases=null"
    ).settings
    cases = HeldOutCases(settings.data, settings.evaluation)
    assert len(cases) == 10
    for index in range(10):
        case = cases.case(index)
        assert case.voxel_mm == VOXEL_MM
        # A head of 150 to 220 mm spans six units of a cloud.
        assert 25 < case.unit_mm < 37
        assert case.implant.abs().max() < 3.5


@pytest.mark.parametrize("threshold", [None, 5000.0])
def test_what_is_not_a_skull_is_rejected(tmp_path: Path, threshold: float | None) -> None:
    path = tmp_path / "empty.nrrd"
    write_nrrd(path, Volume.of(np.zeros((9, 9, 9), dtype=np.int16), (1.0, 1.0, 1.0)))
    with pytest.raises(DataError, match=r"empty\.nrrd: (the mask has no voxels|no value reaches)"):
        read_complete(path, threshold=threshold)


def test_too_many_voxels_are_rejected_before_they_are_allocated(scan: Path) -> None:
    with pytest.raises(DataError, match=r"expected up to 512 per side.*--voxel-mm"):
        read_complete(scan, 0.001)


def test_a_scan_without_a_vault_is_rejected(tmp_path: Path) -> None:
    values = np.zeros((9, 9, 9), dtype=bool)
    values[4, 4, 4] = True
    with pytest.raises(DataError, match=r"plate\.nrrd: the defect .* expected a scan with the"):
        write_rounds(tmp_path / "set", "plate.nrrd", Volume.of(values, (1.0, 1.0, 1.0)), 1, 10)


def test_sets_are_not_mixed(root: Path, scan: Path) -> None:
    complete, _ = read_complete(scan, 2 * VOXEL_MM)
    with pytest.raises(DataError, match=r"holds other synthetic defects.*voxel_mm 2\.5 there"):
        write_rounds(root, scan, complete, 2, POINTS)
