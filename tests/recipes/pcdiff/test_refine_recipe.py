"""overt/recipes/pcdiff/refine_recipe.py: the refinement learns, is scored, and fits the scan."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_REFINE, curve, first_batch
from torch import Tensor, nn

from overt.data.skulls.prepare import load_case
from overt.errors import ConfigError
from overt.geometry.indicator import ScanGrid
from overt.metrics.implants import dice
from overt.recipes.pcdiff.data import HeldOutCases
from overt.recipes.pcdiff.refine_data import bone_in, unit_in_mm, window_of


def test_it_learns_and_is_scored_beside_its_controls(tmp_path: Path) -> None:
    words = ("exp_name=learns", "training.num_steps=20", "optimizer.lr=5e-3")
    scores = SMALL_REFINE.trainer(tmp_path, *words).train()
    losses = curve(tmp_path / "runs" / "learns")
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert {"dsc", "bdsc", "hd95", "blind_dsc", "solid_dsc", "solid_hd95"} <= set(scores)
    assert scores["solid_dsc"] > 0.1


def test_the_loss_is_a_share_of_the_global_batch(tmp_path: Path) -> None:
    recipe = SMALL_REFINE.recipe(tmp_path)
    torch.manual_seed(0)
    model, counts = recipe.build_model(), {"samples": torch.tensor(2)}
    whole = first_batch(recipe, 2)
    total = recipe.loss(model, whole, counts, 0).total
    values = [getattr(whole, field.name) for field in fields(whole)]
    parts = [type(whole)(*(value[i : i + 1] for value in values)) for i in range(2)]
    added = sum(recipe.loss(model, part, counts, 0).total for part in parts)
    torch.testing.assert_close(added, total, atol=1e-4, rtol=1e-3)


class Knowing(nn.Module):
    """Returns the same logits whatever it sees, and keeps what that was."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.seen: list[Tensor] = []

    def forward(self, skull: Tensor, mirrored: Tensor, points: Tensor) -> Tensor:
        self.seen.append(points)
        return self.logits[None]


def test_true_nodes_become_the_true_implant_in_the_voxels_of_the_scan(tmp_path: Path) -> None:
    recipe = SMALL_REFINE.recipe(tmp_path, "model.side=40", "model.spacing_mm=5.0")
    recipe.build_dataset()
    settings = recipe.settings
    case = HeldOutCases(settings.data, settings.evaluation).case(0)
    skull, truth, spacing, to_indices, _ = load_case(case.item, "skullbreak")
    points = case.to_cloud(case.implant)
    window = window_of(points[None], settings.model, unit_in_mm(to_indices, spacing))
    nodes, _ = bone_in(window, truth, to_indices, None, 40)
    model = Knowing(torch.from_numpy(np.where(nodes, 1.0, -1.0).astype(np.float32)))
    grid = ScanGrid(skull, spacing, to_indices)
    known = case.to_cloud(torch.from_numpy(case.cloud.points))
    volumes = recipe.volumes(model, known, np.stack([points, points]), grid)
    assert len(volumes) == 2
    assert dice(volumes[0], truth) > 0.85
    assert not (volumes[0] & skull).any()
    assert (model.seen[0] > 0).all()
    blind = recipe.volumes(model, known, np.stack([points, points]), grid, blind=True)
    assert len(blind) == 1
    assert (model.seen[-1] < 0).all()
    with torch.no_grad():
        model.logits.fill_(-1)
    assert not recipe.volumes(model, known, points[None], grid)[0].any()
    same = recipe.implant_volumes(model, case.cloud, case.implant[None], grid)
    assert len(same) == 1
    # A first stage of another size: as many points as the network has learned from.
    for implant in (points[::2], np.tile(points, (3, 1))):
        recipe.volumes(model, known, implant[None], grid)
        assert model.seen[-1].shape[1] == settings.data.num_implant_points


def test_voxels_much_finer_than_the_nodes_reach_the_surface_between_them(tmp_path: Path) -> None:
    words = ("model.side=16", "model.spacing_mm=8.0", "model.mirrored=false")
    recipe = SMALL_REFINE.recipe(tmp_path, *words)
    logits = torch.full((16, 16, 16), -1.0)
    logits[6:10, 6:10, 6:10] = 9.0  # nodes at 34 to 58 mm, so the surface is at 26.8 and 65.2
    points = 50 + np.random.default_rng(0).choice([-10.0, 10.0], (1, 64, 3))
    grid = ScanGrid(np.zeros((100, 100, 100), dtype=bool), (1.0, 1.0, 1.0), lambda voxels: voxels)
    volume = recipe.volumes(Knowing(logits), points[0], points, grid)[0]
    for axis in range(3):
        line = np.flatnonzero(np.moveaxis(volume, axis, 0)[:, 46, 46])
        assert (line[0], line[-1]) == (27, 65)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.width=12", "multiple of 8"),
        ("model.side=15", "multiple of 2"),
        ("data.errors.lost=1.5", "data.errors.lost"),
        ("data.close_ups={fraction: 0.5, side: 1.6, side_jitter: 0.1, shift: 0.1}", "always sees"),
    ],
)
def test_impossible_settings_are_refused(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL_REFINE.config(tmp_path, word)


def test_skulls_that_cannot_be_mirrored_along_their_first_axis_are_refused(tmp_path: Path) -> None:
    SMALL_REFINE.config(tmp_path, "data.synthetic=null", "data.axes=RAS")
    with pytest.raises(ConfigError, match=r"data\.axes=PIR, but .* along their first axis"):
        SMALL_REFINE.config(tmp_path, "data.synthetic=null", "data.axes=PIR")
