"""overt/data/skulls/prepare.py: clouds beside volumes, seeded lists, and what goes wrong."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import prepare as preparing
from overt.data.skulls.lists import DATASETS, DEFECTS, SkullList
from overt.data.skulls.nrrd import read_nrrd, write_nrrd
from overt.data.skulls.volumes import Frame, Volume, skullfix_frame
from overt.errors import DataError

POINTS = 30


def write_volumes(root: Path, dataset: str, names: list[str]) -> None:
    complete = np.zeros((8, 8, 8), dtype=bool)
    complete[2:6, 2:6, 2:6] = True
    implant = np.zeros_like(complete)
    implant[2:6, 2:6, 5] = True
    parts = {"defective_skull": complete & ~implant, "implant": implant}
    for name in names:
        write_nrrd(root / "complete_skull" / f"{name}.nrrd", Volume.of(complete, (0.45,) * 3))
        for part, mask in parts.items():
            for defect in DEFECTS[dataset]:
                write_nrrd(root / part / defect / f"{name}.nrrd", Volume.of(mask, (0.45,) * 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_volume_gets_its_cloud_whatever_the_workers(workers: int, tmp_path: Path) -> None:
    write_volumes(tmp_path, "skullbreak", ["000", "001"])
    (tmp_path / "complete_skull" / "._000.nrrd").write_bytes(b"hidden, as macOS writes")
    done = preparing.prepare(tmp_path, "skullbreak", POINTS, workers=workers)
    assert (done.written, done.kept, done.problems) == (2 * 11, 0, [])
    cloud = np.load(tmp_path / "implant/random_1/001_surf.npy")
    assert cloud.shape == (POINTS, 3)
    assert cloud.dtype == np.float32
    assert cloud.min() >= 1
    assert cloud.max() <= 6
    other = tmp_path / "again"
    write_volumes(other, "skullbreak", ["001"])
    preparing.prepare(other, "skullbreak", POINTS)
    np.testing.assert_array_equal(np.load(other / "implant/random_1/001_surf.npy"), cloud)


def test_whole_clouds_are_kept_and_broken_ones_made_again(tmp_path: Path) -> None:
    write_volumes(tmp_path, "skullbreak", ["000"])
    preparing.prepare(tmp_path, "skullbreak", POINTS)
    broken = tmp_path / "implant/bilateral/000_surf.npy"
    content = broken.read_bytes()
    broken.write_bytes(content[:50])
    done = preparing.prepare(tmp_path, "skullbreak", POINTS)
    assert (done.written, done.kept) == (1, 10)
    assert broken.read_bytes() == content
    assert preparing.prepare(tmp_path, "skullbreak", POINTS, force=True).written == 11


def test_skullfix_clouds_are_in_the_voxels_of_the_padded_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overt.data.skulls.volumes.SIDE", 12)
    write_volumes(tmp_path, "skullfix", ["000"])
    done = preparing.prepare(tmp_path, "skullfix", POINTS)
    assert (done.written, done.problems) == (3, [])
    cloud = np.load(tmp_path / "complete_skull/000_surf.npy")
    # Four voxels in the middle of twelve in x and y; at the start in z, where the surface is open.
    assert cloud[:, :2].min() >= 3
    assert cloud[:, :2].max() <= 8
    assert cloud[:, 2].max() <= 4
    item = SkullList(tmp_path / "train.csv", "skullfix").items[0]
    case = preparing.load_case(item, "skullfix")
    # Scored in the grid of the files, which is not that of the clouds.
    assert case.skull.shape == case.implant.shape == (8, 8, 8)
    assert (case.skull.sum(), case.implant.sum()) == (48, 16)
    implant = np.load(tmp_path / "implant/000_surf.npy")
    low, high = np.argwhere(case.implant).min(axis=0), np.argwhere(case.implant).max(axis=0)
    indices = case.to_indices(implant)
    assert (indices >= low - 1.001).all()
    assert (indices <= high + 1.001).all()
    assert case.cloud_spacing == (0.45, 0.45, 0.45)


def test_clouds_of_flat_voxels_are_not_squashed(tmp_path: Path) -> None:
    spacing = (0.5, 0.5, 1.0)
    grid = np.indices((24, 24, 12)).transpose(1, 2, 3, 0) * spacing - 5.75
    ball = (grid**2).sum(axis=-1) < 16
    for part in ("complete_skull", "defective_skull/bilateral", "implant/bilateral"):
        write_nrrd(tmp_path / part / "000.nrrd", Volume.of(ball, spacing))
    preparing.prepare(tmp_path, "skullbreak", POINTS)
    extent = np.ptp(np.load(tmp_path / "complete_skull/000_surf.npy"), axis=0)
    np.testing.assert_allclose(extent / extent.max(), 1.0, atol=0.2)  # 0.5 is flat


def test_lists_are_a_seeded_split_and_stay_once_written(tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(114)]
    preparing.write_lists(tmp_path, names, seed=42)
    train, test = ((tmp_path / file).read_text().split() for file in preparing.LISTS)
    assert (len(train), len(test)) == (91, 23)
    assert not set(train) & set(test)
    assert train[0].startswith("complete_skull/")
    preparing.write_lists(tmp_path, names, seed=1)
    assert (tmp_path / "train.csv").read_text().split() == train


def rows(root: Path, file: str) -> list[str]:
    return [Path(row).name.removesuffix("_surf.npy") for row in (root / file).read_text().split()]


@pytest.mark.parametrize("missing", preparing.LISTS)
def test_a_missing_list_gets_the_skulls_that_the_other_one_lacks(
    missing: str, tmp_path: Path
) -> None:
    names = [f"{number:03d}" for number in range(10)]
    (kept,) = set(preparing.LISTS) - {missing}
    # Both styles of rows.
    (tmp_path / kept).write_text("complete_skull/009.nrrd\n/data/complete_skull/004_surf.npy\n")
    before = (tmp_path / kept).read_text()
    preparing.write_lists(tmp_path, names, seed=42)
    assert rows(tmp_path, missing) == [name for name in names if name not in ("004", "009")]
    assert (tmp_path / kept).read_text() == before


def test_added_skulls_are_appended_and_no_skull_changes_its_list(tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(20)]
    preparing.write_lists(tmp_path, names[:10], seed=0)
    before = [rows(tmp_path, file) for file in preparing.LISTS]
    preparing.write_lists(tmp_path, names, seed=0, added=names[10:])
    train, test = (rows(tmp_path, file) for file in preparing.LISTS)
    assert (train[:8], test[:2]) == tuple(before)
    assert (len(train), len(test)) == (16, 4)
    assert sorted(train + test) == names


def test_skulls_in_neither_list_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.csv").write_text("complete_skull/000.nrrd\n")
    (tmp_path / "test.csv").write_text("complete_skull/001.nrrd\n")
    preparing.write_lists(tmp_path, ["000", "001", "002"], seed=0)
    assert "1 of 3 skulls are in neither train.csv nor test.csv" in caplog.text
    assert rows(tmp_path, "train.csv") == ["000.nrrd"]


def test_one_skull_cannot_be_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    preparing.write_lists(tmp_path, ["000"], seed=0)
    assert "test.csv is empty: one skull cannot be split" in caplog.text
    assert "data.test_list=train.csv" in caplog.text
    assert rows(tmp_path, "train.csv") == ["000"]


FLIPPED = np.diag([-0.45, 0.45, 0.45, 1.0])
COARSER = np.diag([0.45, 0.45, 0.9, 1.0])


@pytest.mark.parametrize("dataset", DEFECTS)
@pytest.mark.parametrize("part", ["defective_skull", "implant"])
@pytest.mark.parametrize(
    ("affine", "text"),
    [
        (FLIPPED, "(-0.45,0,0) (0,0.45,0) (0,0,0.45)"),
        (COARSER, "(0.45,0,0) (0,0.45,0) (0,0,0.9)"),
    ],
)
def test_volumes_of_a_skull_with_other_axes_or_spacing_are_refused(
    dataset: str,
    part: str,
    affine: np.ndarray,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overt.data.skulls.volumes.SIDE", 12)
    write_volumes(tmp_path, dataset, ["000"])
    preparing.prepare(tmp_path, dataset, POINTS)
    item = SkullList(tmp_path / "train.csv", dataset).items[0]
    path = item.volume("skull" if part == "defective_skull" else "implant")
    write_nrrd(path, Volume(read_nrrd(path).values, affine))
    (problem,) = preparing.prepare(tmp_path, dataset, POINTS, force=True).problems
    assert problem.startswith(f"{path}: axes {text}, but {tmp_path}/complete_skull/000.nrrd has ")
    assert "(0.45,0,0) (0,0.45,0) (0,0,0.45)" in problem
    with pytest.raises(DataError, match="have the same directions and spacing"):
        preparing.load_case(item, dataset)


def test_another_origin_and_rounded_axes_are_accepted(tmp_path: Path) -> None:
    write_volumes(tmp_path, "skullbreak", ["000"])
    path = tmp_path / "implant/random_1/000.nrrd"
    affine = np.diag([0.4501, 0.45, 0.45, 1.0])
    affine[:3, 3] = 7.0
    affine[1, 0] = 1e-5
    write_nrrd(path, Volume(read_nrrd(path).values, affine))
    assert preparing.prepare(tmp_path, "skullbreak", POINTS).problems == []
    preparing.load_case(SkullList(tmp_path / "train.csv", "skullbreak").items[3], "skullbreak")


def test_a_complete_skullfix_skull_is_resampled_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overt.data.skulls.volumes.SIDE", 12)
    write_volumes(tmp_path, "skullfix", ["000", "001"])
    preparing.prepare(tmp_path, "skullfix", POINTS)
    resampled: list[Path] = []

    def count(volume: Volume, path: Path) -> Frame:
        resampled.append(path)
        return skullfix_frame(volume, path)

    monkeypatch.setattr(preparing, "skullfix_frame", count)
    item = SkullList(tmp_path / "train.csv", "skullfix").items[0]
    points = np.ones((1, 3))
    first, again = (preparing.load_case(item, "skullfix").to_indices(points) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    complete = tmp_path / "complete_skull" / item.volume("skull").name
    assert resampled == [complete]
    moved = np.roll(read_nrrd(complete).values, 1, axis=0)
    write_nrrd(complete, Volume.of(moved, (0.45,) * 3))
    changed = preparing.load_case(item, "skullfix").to_indices(points)
    np.testing.assert_array_equal(changed - first, [[1, 0, 0]])


@pytest.mark.parametrize(("stored", "named"), [DATASETS, DATASETS[::-1]])
def test_the_layout_of_the_other_data_set_is_recognized(
    stored: str, named: str, tmp_path: Path
) -> None:
    write_volumes(tmp_path, stored, ["000"])
    with pytest.raises(DataError, match=f"has the layout of {stored}.* --dataset {stored}"):
        preparing.prepare(tmp_path, named, POINTS)


def test_what_is_wrong_with_volumes_is_all_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overt.data.skulls.volumes.SIDE", 12)
    write_volumes(tmp_path, "skullfix", ["000", "001", "002"])
    empty = Volume.of(np.zeros((8, 8, 8), dtype=bool), (0.45,) * 3)
    write_nrrd(tmp_path / "implant/000.nrrd", empty)
    other = Volume.of(np.ones((8, 8, 9), dtype=bool), (0.45,) * 3)
    write_nrrd(tmp_path / "defective_skull/001.nrrd", other)
    (tmp_path / "implant/002.nrrd").unlink()
    done = preparing.prepare(tmp_path, "skullfix", POINTS)
    assert done.written == 6
    text = "\n".join(done.problems)
    assert "implant/000.nrrd: the volume has no voxels" in text
    assert "defective_skull/001.nrrd: a volume of shape (8, 8, 9), but" in text
    assert "complete_skull/001.nrrd has (8, 8, 8)" in text
    assert "implant/002.nrrd cannot be read" in text


def test_a_folder_without_volumes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no volumes"):
        preparing.prepare(tmp_path, "skullbreak", POINTS)


def test_a_full_volume_has_no_surface(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is full"):
        preparing.cloud_of(
            np.ones((4, 4, 4), dtype=bool), 5, np.random.default_rng(0), tmp_path / "x.nrrd"
        )


def without_axes(path: Path) -> None:
    """Write a volume again, with a header that gives no size of its voxels."""
    values = read_nrrd(path).values.astype(np.uint8)
    sizes = " ".join(map(str, values.shape))
    header = f"NRRD0004\ntype: uint8\ndimension: 3\nsizes: {sizes}\nencoding: raw\n\n"
    path.write_bytes(header.encode() + values.tobytes(order="F"))


@pytest.mark.parametrize("part", ["complete_skull", "implant/bilateral"])
def test_a_header_without_axes_is_not_compared(part: str, tmp_path: Path) -> None:
    write_volumes(tmp_path, "skullbreak", ["000"])
    without_axes(tmp_path / part / "000.nrrd")
    assert preparing.prepare(tmp_path, "skullbreak", POINTS).problems == []
    preparing.load_case(SkullList(tmp_path / "train.csv", "skullbreak").items[0], "skullbreak")


def test_voxels_of_one_millimeter_are_compared(tmp_path: Path) -> None:
    write_volumes(tmp_path, "skullbreak", ["000"])
    for path in tmp_path.rglob("*.nrrd"):
        write_nrrd(path, Volume(read_nrrd(path).values, np.eye(4)))
    path = tmp_path / "implant/bilateral/000.nrrd"
    write_nrrd(path, Volume(read_nrrd(path).values, np.diag([-1.0, 1.0, 1.0, 1.0])))
    (problem,) = preparing.prepare(tmp_path, "skullbreak", POINTS).problems
    assert problem.startswith(f"{path}: axes (-1,0,0) (0,1,0) (0,0,1), but ")


@pytest.mark.parametrize("part", ["complete_skull", "defective_skull/bilateral"])
def test_cases_are_scored_in_the_coordinates_of_their_clouds(part: str, tmp_path: Path) -> None:
    """Of flat voxels, of which one of two headers does not tell."""
    write_volumes(tmp_path, "skullbreak", ["000"])
    for path in tmp_path.rglob("*.nrrd"):
        write_nrrd(path, Volume.of(read_nrrd(path).values, (0.5, 0.5, 1.0)))
    without_axes(tmp_path / part / "000.nrrd")
    assert preparing.prepare(tmp_path, "skullbreak", POINTS).problems == []
    item = SkullList(tmp_path / "train.csv", "skullbreak").items[0]
    case = preparing.load_case(item, "skullbreak")
    indices = case.to_indices(np.load(item.implant))
    # The implant is the layer of voxels 5, and clouds lie up to a voxel outside.
    assert indices[:, 2].min() >= 4
    assert indices[:, 2].max() <= 6


def test_cases_without_a_complete_volume_are_scored(tmp_path: Path) -> None:
    write_volumes(tmp_path, "skullbreak", ["000"])
    preparing.prepare(tmp_path, "skullbreak", POINTS)
    item = SkullList(tmp_path / "train.csv", "skullbreak").items[0]
    (tmp_path / "complete_skull/000.nrrd").unlink()
    case = preparing.load_case(item, "skullbreak")
    np.testing.assert_array_equal(case.to_indices(np.ones((1, 3))), np.ones((1, 3)))
