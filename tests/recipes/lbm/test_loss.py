"""overt/recipes/lbm/loss.py: shares add up, nothing supervised is no NaN, limits hold."""

import dataclasses

import pytest
import torch

from overt.recipes.lbm.config import LossSettings
from overt.recipes.lbm.loss import (
    LIMIT,
    Prediction,
    Targets,
    counts,
    losses,
    pooled_losses,
    regression,
    uncertainty,
    uncertainty_of_candidates,
)

SETTINGS = LossSettings(
    classification_weight=3.0,
    visibility_weight=0.5,
    regression_weight=1.5,
    uncertainty_weight=2.0,
    candidates_weight=0.7,
    after_query=True,
)


def make(batch: int, seed: int = 0) -> tuple[Prediction, Targets]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(batch, 4, 5, *shape, generator=generator)

    targets = Targets(draw(2) * 9 + 16, draw() > 0, draw() > -0.5)
    prediction = Prediction(
        targets.tracks_xy + draw(2) * 6,
        draw(),
        draw(),
        tuple(targets.tracks_xy.unsqueeze(3) + draw(count, 2) * 8 for count in (4, 3, 1)),
        tuple(draw(count) for count in (4, 3, 1)),
        torch.rand(3, batch, 4, 5, generator=generator),
    )
    return prediction, targets


def part(prediction: Prediction, targets: Targets, number: int) -> tuple[Prediction, Targets]:
    one = slice(number, number + 1)
    cut = Prediction(
        *(value[one] for value in prediction[:3]),
        *(tuple(value[one] for value in several) for several in prediction[3:5]),
        prediction.entropy[:, one],
    )
    return cut, Targets(*(value[one] for value in targets))


def test_shares_of_single_clips_add_up() -> None:
    prediction, targets = make(3)
    total = counts(targets)
    whole = losses(prediction, targets, total, SETTINGS)
    shares = [losses(*part(prediction, targets, n), total, SETTINGS) for n in range(3)]
    for name, value in whole.items():
        torch.testing.assert_close(sum(share[name] for share in shares), value)


def test_clips_that_are_pooled_have_their_own_counts() -> None:
    """Of groups of two clips each, the loss is the mean of what each group alone has."""
    prediction, targets = make(4)
    settings = dataclasses.replace(SETTINGS, clips_per_mean=2)
    pooled = pooled_losses(prediction, targets, torch.tensor(4.0), settings)
    halves = []
    for first in (0, 2):
        pieces = [part(prediction, targets, number) for number in (first, first + 1)]
        own = Targets(*(torch.cat(parts) for parts in zip(*(t for _, t in pieces), strict=True)))
        total = counts(own)
        terms = [losses(*piece, total, settings) for piece in pieces]
        halves.append({name: terms[0][name] + terms[1][name] for name in terms[0]})
    whole = losses(prediction, targets, counts(targets), SETTINGS)
    for name, value in pooled.items():
        torch.testing.assert_close(value, (halves[0][name] + halves[1][name]) / 2)
    assert any(not torch.isclose(pooled[name], whole[name]) for name in whole)


def test_nothing_supervised_is_no_loss_and_no_nan() -> None:
    prediction, targets = make(2)
    targets = targets._replace(supervised=torch.zeros_like(targets.supervised))
    points = prediction.points_xy.requires_grad_()
    terms = losses(prediction, targets, counts(targets), SETTINGS)
    assert all(value.item() == 0 for value in terms.values())
    torch.stack(list(terms.values())).sum().backward()
    assert not points.grad.any()


def test_an_error_beyond_the_limit_has_no_gradient() -> None:
    _, targets = make(1)
    everywhere = targets._replace(
        visible=torch.ones_like(targets.visible), supervised=torch.ones_like(targets.supervised)
    )
    offset = torch.full((1, 4, 5, 2), LIMIT / 2 + 0.1)
    offset[0, 0, 0] = 1.0
    points = (targets.tracks_xy + offset).requires_grad_()
    value = regression(points, everywhere)
    assert value.item() == pytest.approx(19 * LIMIT + 2.0, rel=1e-5)
    value.backward()
    assert points.grad.count_nonzero() == 2


def test_candidates_count_equally_whatever_their_layer() -> None:
    prediction, targets = make(2)
    found = uncertainty_of_candidates(
        prediction.candidates_xy[:2], prediction.candidates_rho[:2], targets
    )
    single = [
        uncertainty(places[:, :, :, k], rho[:, :, :, k], targets)
        for places, rho in zip(
            prediction.candidates_xy[:2], prediction.candidates_rho[:2], strict=True
        )
        for k in range(rho.shape[3])
    ]
    assert len(single) == 7
    torch.testing.assert_close(found, torch.stack(single).mean())


def test_the_weight_of_uncertainty_counts_twice_for_the_point() -> None:
    prediction, targets = make(2)
    total = counts(targets)
    found = losses(prediction, targets, total, SETTINGS)["uncertainty"]
    once = uncertainty(prediction.points_xy, prediction.rho, targets) / total["supervised"]
    torch.testing.assert_close(found, 4 * once)
