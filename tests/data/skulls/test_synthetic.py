"""overt/data/skulls/synthetic.py: skulls, defects and implants that fit, in SkullBreak's layout."""

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


def test_sets_are_not_mixed(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds other synthetic skulls"):
        synthetic.write_skulls(root, 2, side=32, points=200)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="was not made by this command"):
        synthetic.write_skulls(tmp_path, 1, side=24, points=200)
