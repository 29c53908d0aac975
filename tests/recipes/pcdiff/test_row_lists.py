"""The lists of a level: gradients of its layers with them are those of the definitions."""

import pytest
import torch
from kernel_tests import DEVICE, kernel_test
from torch import Tensor, nn

from overt.nested import map_tensors
from overt.ops.point_rows import api, lists
from overt.recipes.pcdiff.geometry import Level, LevelPlan, find_level, furthest_centers
from overt.recipes.pcdiff.layers import FeaturePropagation, PVConv, SetAbstraction

PLAN = LevelPlan(centers=12, radius=0.8, neighbours=8, resolutions=(3,), pairs_per_center=8)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.voxels = PVConv(3, 8, 3, dropout=None)
        self.centers = SetAbstraction(8, [8, 16])
        self.points = FeaturePropagation(16 + 8, [8])

    def forward(self, features: Tensor, level: Level) -> Tensor:
        at_points = self.voxels(features, level.grids[3])
        at_centers = self.centers(at_points, level.pairs, level.relative)
        return self.points(at_centers, level.nearest, at_points)


def make_level(differentiable: bool = True) -> Level:
    coords = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return find_level(coords, furthest_centers(coords, PLAN.centers), PLAN, differentiable)


def gradients(level: Level) -> list[Tensor]:
    torch.manual_seed(0)
    layers = Layers().to(DEVICE)
    features = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    features.requires_grad_()
    result = layers(features, level)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    inputs = [features, *layers.parameters()]
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), inputs)]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of rows run wherever the test does."""
    for module in (api, lists):
        monkeypatch.setattr(module, "use_kernels", lambda *_, **__: True)


@kernel_test
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("differentiable", [True, False])
def test_layers_have_the_gradients_of_the_definitions(
    differentiable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lists were not made beforehand."""
    level = make_level(differentiable)
    found = gradients(level)
    monkeypatch.setattr(api, "use_kernels", lambda *_: False)
    for one, other in zip(found, gradients(level), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@kernel_test
@pytest.mark.usefixtures("served")
def test_sampling_lists_what_it_averages_and_nothing_else() -> None:
    level = make_level(differentiable=False)
    assert level.grids[3].bin_lists is not None
    assert level.grids[3].corner_lists is None
    assert level.pairs.lists is None
    assert level.nearest.lists is None


@kernel_test
@pytest.mark.usefixtures("served")
def test_a_copied_level_keeps_its_lists() -> None:
    """As a replayed preparation hands it over."""
    level = make_level()
    copied = map_tensors(level, Tensor.clone)
    assert isinstance(copied.grids[3].corner_lists, lists.RowLists)
    assert copied.grids[3].corner_lists.side == 3
    for one, other in zip(gradients(level), gradients(copied), strict=True):
        torch.testing.assert_close(one, other)


def test_the_definitions_need_no_lists() -> None:
    if DEVICE == "cpu":
        level = make_level()
        assert level.pairs.lists is None
        assert level.nearest.lists is None
