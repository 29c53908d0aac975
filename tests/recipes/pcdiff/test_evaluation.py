"""overt/recipes/pcdiff/evaluation.py: scores by case, for any world size and ensemble."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF

from overt.data.skulls.lists import Cloud, item_of
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.prepare import cloud_of
from overt.data.skulls.volumes import Volume
from overt.distributed import init_distributed
from overt.errors import ConfigError, DataError
from overt.recipes.pcdiff import evaluation
from overt.recipes.pcdiff.data import HeldOutCase

CLOSE_UP = (
    "data.close_ups={fraction: 0.5, side: 1.6, side_jitter: 0.1, shift: 0.1}",
    "evaluation.close_up=true",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pcdiff")
    SMALL_PCDIFF.recipe(root).build_dataset()  # writes the skulls
    return root


def scores_here(root: Path) -> dict[str, float]:
    recipe = SMALL_PCDIFF.recipe(root, "evaluation.volumes=false")
    world = init_distributed("cpu")
    torch.manual_seed(0)
    with torch.inference_mode():
        return recipe.evaluate(recipe.build_model().eval(), world)


def test_scores_do_not_depend_on_the_number_of_processes(
    run_processes: Callable[..., list[dict[str, float]]], root: Path
) -> None:
    first, second = run_processes(scores_here, 2, root)
    assert first == second == scores_here(root)


def test_an_ensemble_has_members_of_its_own(root: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root, "evaluation.ensemble=3")
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    skull = np.random.default_rng(0).normal(size=(300, 3)) * 40
    with torch.inference_mode():
        found = recipe.complete(model, skull, "skull.npy")
    assert found.implants.shape == (3, 32, 3)
    assert not torch.allclose(found.implants[0], found.implants[1])
    assert found.known.points.shape == (128, 3)


def test_a_close_up_is_sampled_again_and_returned_in_the_coordinates_of_the_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both passes return points beside the center of what they were shown."""
    shown = []

    def center(model: object, known: torch.Tensor, count: int, *rest: object) -> torch.Tensor:
        shown.append(known)
        spread = torch.linspace(-0.5, 0.5, count)[None, :, None] * torch.ones(len(known), 1, 3)
        return known.mean(1, keepdim=True) + spread + torch.tensor([2.0, 0.0, 0.0])

    monkeypatch.setattr(evaluation, "sample_implants", center)
    recipe = SMALL_PCDIFF.recipe(root, *CLOSE_UP, "evaluation.ensemble=2")
    skull = np.random.default_rng(0).uniform(-60, 60, (20_000, 3))
    found = recipe.complete(recipe.build_model(), skull, "skull.npy")
    assert [known.shape for known in shown] == [(2, 128, 3)] * 2
    # 2 units of 20 mm to the side of the middle; then 2 units of a cube of 1.6 x 1 unit x 20 mm.
    side = 1.6 * 20
    mean = found.implants[0].mean(0).numpy() * found.known.scale + found.known.shift
    np.testing.assert_allclose(mean[0, 0], 40 + 2 * side / 6, atol=0.25 * side)
    np.testing.assert_allclose(mean[0, 1:], 0, atol=0.25 * side)
    extent = float(np.ptp(found.implants[0].numpy(), axis=0).max() * found.known.scale.item())
    assert abs(extent - side / 6) < 0.1 * side / 6


def test_where_a_close_up_has_no_bone_the_whole_skull_is_sampled_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []

    def far_away(model: object, known: torch.Tensor, count: int, *rest: object) -> torch.Tensor:
        shown.append(known)
        return torch.linspace(50, 51, count)[None, :, None].repeat(len(known), 1, 3)

    monkeypatch.setattr(evaluation, "sample_implants", far_away)
    recipe = SMALL_PCDIFF.recipe(root, *CLOSE_UP)
    skull = np.random.default_rng(0).uniform(-60, 60, (500, 3))
    found = recipe.complete(recipe.build_model(), skull, "skull.npy")
    torch.testing.assert_close(shown[0], shown[1])
    assert float(found.implants.min()) > 49


def test_volumes_of_a_perfect_model_are_right_in_voxels_finer_than_in_training(
    tmp_path: Path,
) -> None:
    """It samples points of clouds of 4 mm; scored are volumes of 1 mm."""
    coarse = np.pad(np.ones((9, 9, 2), bool), 3)
    fine = coarse.repeat(4, 0).repeat(4, 1).repeat(4, 2)
    item = item_of(tmp_path, "skullbreak", "bilateral", "000")
    for part, values in (("skull", np.zeros_like(fine)), ("implant", fine)):
        item.volume(part).parent.mkdir(parents=True)
        write_nrrd(item.volume(part), Volume.of(values.astype(np.uint8), (1.0, 1.0, 1.0)))
    rng = np.random.default_rng(0)
    sampled, true = (cloud_of(mask, 800, rng, tmp_path) for mask in (coarse, fine))
    sampled = (sampled + 0.5) * 4 - 0.5
    cloud = Cloud(true.astype(np.float32), np.zeros((1, 3)), np.ones((1, 1)))
    case = HeldOutCase(cloud, true, 0, item, torch.from_numpy(true), 1.0)
    settings = SMALL_PCDIFF.recipe(tmp_path).settings.evaluation
    implants = torch.from_numpy(sampled)[None]
    rows = [
        evaluation.volume_scores(case, implants, settings, "skullbreak", made_in)
        for made_in in ((4.0, 4.0, 4.0), None)
    ]
    assert rows[0]["dsc"] > 0.96 > 0.85 > rows[1]["dsc"]
    assert rows[0]["ceiling_dsc"] == rows[1]["ceiling_dsc"] > 0.96


def test_non_finite_samples_are_refused_before_volumes_are_scored(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: object, known: torch.Tensor, count: int, *rest: object) -> torch.Tensor:
        return torch.full((len(known), count, 3), torch.nan)

    monkeypatch.setattr(evaluation, "sample_implants", broken)
    recipe = SMALL_PCDIFF.recipe(root, "evaluation.cases=1", "evaluation.volumes=true")
    with pytest.raises(DataError, match=r"32 of 32 sampled points are non-finite .* more eval"):
        recipe.evaluate(recipe.build_model(), init_distributed("cpu"))


def test_a_close_up_needs_the_settings_it_was_trained_with(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs data\.close_ups"):
        SMALL_PCDIFF.recipe(root, "evaluation.close_up=true")
