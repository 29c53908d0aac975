"""overt/recipes/pcdiff/geometry.py: centers, neighbors and grids, shared by all levels."""

from pathlib import Path

import torch
from small_recipes import SMALL_PCDIFF

from overt.recipes.pcdiff.geometry import find_geometry, first_centers


def test_fewer_points_than_centres_repeat_the_first() -> None:
    coords = torch.arange(12.0).view(1, 4, 3)
    assert torch.equal(first_centers(coords, 2), coords[:, :2])
    longer = first_centers(coords, 6)
    assert torch.equal(longer[:, :4], coords)
    assert torch.equal(longer[:, 4:], coords[:, :1].expand(-1, 2, -1))


def test_levels_share_their_grids_both_ways(tmp_path: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(tmp_path)
    model = recipe.build_model()
    assert recipe.plans == model.plans
    geometry = find_geometry(torch.randn(2, 160, 3), recipe.plans)
    assert [sorted(level.grids) for level in geometry.levels] == [[6], [3], [1]]
    assert [level.coords.shape[1] for level in geometry.levels] == [160, 192, 48]
    assert float(geometry.fullest()) == 1.0  # on the CPU there is room for just what is found
