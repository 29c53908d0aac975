"""overt/data/skulls/prepare.py: clouds beside volumes, seeded lists, and what goes wrong."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import prepare as preparing
from overt.data.skulls.lists import DEFECTS, SkullList
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.volumes import Volume
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
    assert "001.nrrd: a volume of shape (8, 8, 9), but the complete skull has (8, 8, 8)" in text
    assert "implant/002.nrrd cannot be read" in text


def test_a_folder_without_volumes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no volumes"):
        preparing.prepare(tmp_path, "skullbreak", POINTS)


def test_a_full_volume_has_no_surface(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is full"):
        preparing.cloud_of(
            np.ones((4, 4, 4), dtype=bool), 5, np.random.default_rng(0), tmp_path / "x.nrrd"
        )
