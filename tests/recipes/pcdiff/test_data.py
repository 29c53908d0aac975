"""overt/recipes/pcdiff/data.py: samples follow from their generator; bad data are named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF

from overt.data.rng import sample_rng
from overt.errors import ConfigError, DataError
from overt.recipes.pcdiff.data import HeldOutCases


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pcdiff")
    SMALL_PCDIFF.recipe(root).build_dataset()  # writes the skulls
    return root


def test_a_missing_root_says_where_to_get_the_data(tmp_path: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(tmp_path, "data.synthetic=null", "data.root=null")
    with pytest.raises(ConfigError, match="overt data prepare"):
        recipe.build_dataset()


def test_data_problems_show_before_training(root: Path, tmp_path: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root, "data.num_points=1000", "data.num_implant_points=500")
    with pytest.raises(DataError, match="400 points; asked for are 500"):
        recipe.build_dataset()
    (tmp_path / "train.csv").write_text("complete_skull/000.nrrd\n")
    recipe = SMALL_PCDIFF.recipe(root, f"data.root={tmp_path}", "data.synthetic=null")
    with pytest.raises(DataError, match="10 of 10 clouds are missing"):
        recipe.build_dataset()


def test_a_sample_is_a_function_of_its_generator(root: Path) -> None:
    dataset = SMALL_PCDIFF.recipe(root, "data.augment=true").build_dataset()
    one, other = (dataset.sample(3, sample_rng(0, 1, 3)) for _ in range(2))
    assert one.time == other.time
    for name in ("known", "implant", "noise"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert one.known.shape == (128, 3)
    assert one.implant.shape == one.noise.shape == (32, 3)
    later = dataset.sample(3, sample_rng(0, 2, 3))
    assert not torch.equal(one.noise, later.noise)


def test_at_time_0_an_item_always_has_the_same_noise(root: Path) -> None:
    dataset = SMALL_PCDIFF.recipe(root).build_dataset()
    dataset.steps = 1  # every time step is 0
    one, other = (dataset.sample(2, sample_rng(0, epoch, 2)) for epoch in range(2))
    assert torch.equal(one.noise, other.noise)
    assert not torch.equal(one.known, other.known)
    assert not torch.equal(one.noise, dataset.sample(1, sample_rng(0, 0, 1)).noise)
    free = SMALL_PCDIFF.recipe(root, "data.fixed_noise_at_t0=false").build_dataset()
    free.steps = 1
    one, other = (free.sample(2, sample_rng(0, epoch, 2)) for epoch in range(2))
    assert not torch.equal(one.noise, other.noise)


def test_held_out_cases_are_spread_over_the_list_and_always_the_same(root: Path) -> None:
    settings = SMALL_PCDIFF.recipe(root, "evaluation.cases=3").settings
    cases = HeldOutCases(settings.data, settings.evaluation)
    assert cases.places == [0, 2, 4]
    one, other = (cases.case(1) for _ in range(2))
    np.testing.assert_array_equal(one.cloud.points, other.cloud.points)
    assert torch.equal(one.implant, other.implant)
    assert np.abs(one.cloud.points).max() == pytest.approx(3.0)
    assert one.voxel_mm == pytest.approx(200 / 24)
    # The true implant in voxels is within the volume, as its file has it.
    voxels = one.to_cloud(one.implant)
    stored = np.load(one.item.implant)
    assert (voxels >= stored.min(axis=0) - 1e-3).all()
    assert (voxels <= stored.max(axis=0) + 1e-3).all()
