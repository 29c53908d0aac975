"""overt/data/skulls/synthetic.py: skulls, defects and implants that fit, in SkullBreak's layout."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import synthetic
from overt.data.skulls.lists import SkullList
from overt.data.skulls.prepare import load_case, prepare
from overt.errors import DataError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("skulls") / "set"
    assert synthetic.write_skulls(root, 2, side=24, points=200) == 2
    return root


def test_a_set_is_complete_and_needs_no_preparation(root: Path) -> None:
    for file in ("train.csv", "test.csv"):
        items = SkullList(root / file, "skullbreak")
        assert len(items) == 5
        items.check(200, 200)
    done = prepare(root, "skullbreak", points=200)
    assert (done.written, done.kept) == (0, 22)


def test_implants_fill_the_defects(root: Path) -> None:
    for item in SkullList(root / "train.csv", "skullbreak").items:
        skull, implant, *_ = load_case(item, "skullbreak")
        assert not (skull & implant).any()
        fraction = implant.sum() / (skull | implant).sum()
        assert 0.005 < fraction < 0.3, item.name
        cloud = np.load(item.implant)
        inside = np.argwhere(implant)
        assert (cloud.min(axis=0) >= inside.min(axis=0) - 1).all()
        assert (cloud.max(axis=0) <= inside.max(axis=0) + 1).all()


def test_a_skull_depends_on_seed_and_number_only(root: Path, tmp_path: Path) -> None:
    synthetic.write_skulls(tmp_path / "one", 1, side=24, points=200)
    name = "implant/random_2/000_surf.npy"
    assert (tmp_path / "one" / name).read_bytes() == (root / name).read_bytes()
    assert synthetic.write_skulls(tmp_path / "one", 1, side=24, points=200) == 0
    synthetic.write_skulls(tmp_path / "two", 1, side=24, points=200, seed=1)
    assert (tmp_path / "two" / name).read_bytes() != (root / name).read_bytes()


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], int]:
    """Write only the last file of each skull."""

    def write_last(root: Path, number: int, **unused: object) -> None:
        cloud = root / "complete_skull" / f"{number:03d}_surf.npy"
        cloud.parent.mkdir(exist_ok=True)
        cloud.touch()

    monkeypatch.setattr(synthetic, "write_skull", write_last)
    return lambda root, count: synthetic.write_skulls(root, count, side=24, points=200)


def lists_of(root: Path) -> list[list[str]]:
    return [(root / file).read_text().split() for file in ("train.csv", "test.csv")]


def test_a_set_made_at_once_has_the_lists_of_published_results(
    tmp_path: Path, write: Callable[[Path, int], int]
) -> None:
    write(tmp_path / "set", 500)
    train, test = lists_of(tmp_path / "set")
    assert (len(train), len(test)) == (400, 100)
    content = "\n".join([*train, "", *test]).encode()
    assert hashlib.sha256(content).hexdigest()[:16] == "14bafb4198550911"


def test_a_skull_stays_in_its_list_when_the_set_grows(
    tmp_path: Path, write: Callable[[Path, int], int]
) -> None:
    root = tmp_path / "set"
    write(root, 10)
    before = lists_of(root)
    assert write(root, 20) == 10
    train, test = lists_of(root)
    assert (train[:8], test[:2]) == tuple(before)
    assert (len(train), len(test)) == (16, 4)
    assert len({*train, *test}) == 20
    write(tmp_path / "again", 10)
    write(tmp_path / "again", 20)
    assert lists_of(tmp_path / "again") == [train, test]


def test_a_single_skull_grows_into_a_set_that_is_split(
    tmp_path: Path, write: Callable[[Path, int], int]
) -> None:
    for count in (1, 20):
        write(tmp_path / "set", count)
    assert [len(rows) for rows in lists_of(tmp_path / "set")] == [16, 4]


def test_rows_that_a_user_changed_stay(
    tmp_path: Path, write: Callable[[Path, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "set"
    write(root, 5)
    (root / "train.csv").write_text("complete_skull/003.nrrd\ncomplete_skull/000.nrrd")
    (root / "test.csv").write_text("complete_skull/004.nrrd\n")
    (root / "complete_skull" / "005_surf.npy").touch()  # of an interrupted call
    write(root, 7)
    train, test = lists_of(root)
    assert train[:2] == ["complete_skull/003.nrrd", "complete_skull/000.nrrd"]
    assert test[0] == "complete_skull/004.nrrd"
    added = {f"complete_skull/{name}_surf.npy" for name in ("005", "006")}
    assert {*train[2:], *test[1:]} == added
    assert "2 of 7 skulls are in neither" in caplog.text  # 001 and 002
    write(root, 7)
    assert lists_of(root) == [train, test]


def test_a_smaller_count_than_the_folder_holds_is_reported(
    tmp_path: Path, write: Callable[[Path, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "set"
    write(root, 10)
    before = lists_of(root)
    assert not caplog.text
    assert write(root, 5) == 0
    assert "holds 10 skulls, more than the 5 requested" in caplog.text
    assert lists_of(root) == before


def test_sets_are_not_mixed(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds other synthetic skulls"):
        synthetic.write_skulls(root, 2, side=32, points=200)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="was not made by this command"):
        synthetic.write_skulls(tmp_path, 1, side=24, points=200)
