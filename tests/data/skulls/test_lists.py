"""overt/data/skulls/lists.py: lists and files as published, what a cloud becomes, and refusals."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import lists
from overt.errors import DataError


def write_clouds(root: Path, dataset: str, numbers: list[str], points: int = 20) -> None:
    rng = np.random.default_rng(0)
    for number in numbers:
        for defect in lists.DEFECTS[dataset]:
            for part in ("defective_skull", "implant"):
                folder = root / part / defect
                folder.mkdir(parents=True, exist_ok=True)
                np.save(folder / f"{number}_surf.npy", rng.normal(size=(points, 3)))


@pytest.mark.parametrize("dataset", lists.DATASETS)
@pytest.mark.parametrize("row", ["complete_skull/{}.nrrd", "complete_skull/{}_surf.npy"])
@pytest.mark.parametrize("absolute", [True, False])
def test_both_styles_of_rows_name_the_same_items(
    dataset: str, row: str, absolute: bool, tmp_path: Path
) -> None:
    write_clouds(tmp_path, dataset, ["000", "007"])
    before = f"{tmp_path}/" if absolute else ""
    lines = [before + row.format(number) for number in ("007", "000")]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n\n")
    items = lists.SkullList(tmp_path / "train.csv", dataset)
    items.check(20, 20)
    each = len(lists.DEFECTS[dataset])
    assert len(items) == 2 * each
    first, last = items.items[0], items.items[-1]
    if dataset == "skullbreak":
        assert first.name == "bilateral007_surf"
        assert last.skull == tmp_path / "defective_skull/random_2/000_surf.npy"
        assert items.items[1 * 5 + 2].name == "parietotemporal000_surf"
    else:
        assert first.name == "007_surf"
        assert last.implant == tmp_path / "implant/000_surf.npy"
    assert first.volume("implant").name == "007.nrrd"


def test_missing_clouds_are_all_named_at_once(tmp_path: Path) -> None:
    write_clouds(tmp_path, "skullfix", ["000", "001", "002"])
    (tmp_path / "train.csv").write_text(
        "".join(f"complete_skull/{number}.nrrd\n" for number in ("000", "001", "002"))
    )
    gone = [tmp_path / "implant/001_surf.npy", tmp_path / "defective_skull/002_surf.npy"]
    for path in gone:
        path.unlink()
    with pytest.raises(DataError, match="2 of 6 clouds are missing") as error:
        lists.SkullList(tmp_path / "train.csv", "skullfix").check(5, 5)
    assert all(str(path) in str(error.value) for path in gone)
    assert "overt data prepare" in str(error.value)


def test_a_missing_volume_is_named_beside_its_cloud(tmp_path: Path) -> None:
    write_clouds(tmp_path, "skullfix", ["000", "001"])
    (tmp_path / "train.csv").write_text("complete_skull/000.nrrd\ncomplete_skull/001.nrrd\n")
    clouds = lists.SkullList(tmp_path / "train.csv", "skullfix")
    (tmp_path / "implant/000_surf.npy").unlink()
    (tmp_path / "implant/000.nrrd").touch()
    with pytest.raises(DataError, match="overt data prepare ROOT --dataset skullfix") as error:
        clouds.check(5, 5)
    assert "volume " not in str(error.value)
    (tmp_path / "implant/001_surf.npy").unlink()
    with pytest.raises(DataError, match=r"001_surf.npy \(its volume 001.nrrd too\)") as error:
        clouds.check(5, 5)
    assert "1 of them have no volume beside them: copy it" in str(error.value)


@pytest.mark.parametrize(("stored", "named"), [lists.DATASETS, lists.DATASETS[::-1]])
def test_clouds_of_the_other_data_set_are_recognized(
    stored: str, named: str, tmp_path: Path
) -> None:
    write_clouds(tmp_path, stored, ["000"])
    (tmp_path / "train.csv").write_text("complete_skull/000.nrrd\n")
    with pytest.raises(DataError, match=f"set data.dataset={stored}"):
        lists.SkullList(tmp_path / "train.csv", named).check(5, 5)


def test_clouds_of_the_wrong_size_and_shape_are_all_named_at_once(tmp_path: Path) -> None:
    write_clouds(tmp_path, "skullfix", ["000", "001"])
    (tmp_path / "train.csv").write_text("complete_skull/000.nrrd\ncomplete_skull/001.nrrd\n")
    np.save(tmp_path / "implant/000_surf.npy", np.zeros((3, 3)))
    np.save(tmp_path / "defective_skull/001_surf.npy", np.zeros((50, 2)))
    (tmp_path / "implant/001_surf.npy").write_bytes(b"no array")
    with pytest.raises(DataError) as error:
        lists.SkullList(tmp_path / "train.csv", "skullfix").check(20, 10)
    text = str(error.value)
    assert "3 clouds cannot be used" in text
    assert "3 points, expected at least 10" in text
    assert "`overt data prepare ROOT --dataset skullfix --points 20`" in text
    assert "(50, 2); expected floats of shape (points, 3)" in text
    assert "not a readable array" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty.* data.test_list=train.csv"),
        ("skulls/000.nrrd\n", "row 1: 'skulls/000.nrrd'; expected complete_skull"),
        ("complete_skull/000.nrrd\ncomplete_skull/001.npy\n", "row 2"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        lists.SkullList(tmp_path / "train.csv", "skullfix")
    with pytest.raises(DataError, match="cannot be read"):
        lists.SkullList(tmp_path / "absent.csv", "skullfix")


def test_points_that_are_not_finite_are_refused() -> None:
    cloud = np.zeros((4, 3))
    cloud[2, 1] = np.nan
    with pytest.raises(DataError, match=r"cloud.npy: point 2 is not finite"):
        lists.draw_points(cloud, 50, np.random.default_rng(0), Path("cloud.npy"))


def test_points_are_drawn_with_replacement_in_the_order_of_the_draw() -> None:
    cloud = np.arange(30.0).reshape(10, 3)
    chosen = np.random.default_rng(3).integers(0, 10, 25)
    drawn = lists.draw_points(cloud, 25, np.random.default_rng(3), Path("x"))
    np.testing.assert_array_equal(drawn, cloud[chosen])


def test_rotations_are_right_handed_and_in_the_order_x_y_z() -> None:
    quarter = np.pi / 2
    np.testing.assert_allclose(
        lists.rotation_matrix([quarter, 0, 0]) @ [0, 1, 0], [0, 0, 1], atol=1e-12
    )
    np.testing.assert_allclose(
        lists.rotation_matrix([0, quarter, 0]) @ [0, 0, 1], [1, 0, 0], atol=1e-12
    )
    np.testing.assert_allclose(
        lists.rotation_matrix([0, 0, quarter]) @ [1, 0, 0], [0, 1, 0], atol=1e-12
    )
    parts = [lists.rotation_matrix(row) for row in np.diag([0.3, -0.2, 0.7])]
    np.testing.assert_allclose(
        lists.rotation_matrix([0.3, -0.2, 0.7]), parts[0] @ parts[1] @ parts[2]
    )


def test_a_cloud_fills_its_box_and_finds_its_way_back() -> None:
    rng = np.random.default_rng(0)
    known, implant = rng.normal(size=(50, 3)) * [9, 2, 1] + 40, rng.normal(size=(20, 3)) + 60
    whole = lists.training_cloud(known, implant)
    assert whole.points.dtype == np.float32
    assert np.abs(whole.points).max() == pytest.approx(3.0)
    back = whole.points * whole.scale + whole.shift
    np.testing.assert_allclose(back, np.concatenate([known, implant]), atol=1e-4)
    # By the known points alone the skull looks as it does when its implant is looked for.
    by_known = lists.training_cloud(known, implant, known_box=True)
    np.testing.assert_allclose(by_known.points[:50], lists.known_cloud(known).points, atol=1e-6)
    assert np.abs(by_known.points[50:]).max() > 3.0


def test_a_cloud_at_one_place_is_refused() -> None:
    with pytest.raises(DataError, match="one position"):
        lists.known_cloud(np.ones((5, 3)))
