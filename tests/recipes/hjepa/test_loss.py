"""Losses: shares add up, and terms that mix samples mix those of all processes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from overt.recipes.hjepa.loss import (
    contrastive,
    distance,
    gather_rows,
    level_losses,
    random_slices,
    sigreg,
    sigreg_by_points,
    spread,
)


def test_shares_of_unequal_parts_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    prediction, target = torch.randn(2, 10, 6)
    valid = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1, 0]).bool()
    count = valid.sum()[None]
    (whole,) = level_losses([prediction], [target], [valid], count, "huber", 0.5)
    parts = [
        level_losses([prediction[part]], [target[part]], [valid[part]], count, "huber", 0.5)[0]
        for part in (slice(0, 3), slice(3, 10))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)
    torch.testing.assert_close(
        whole, torch.nn.functional.huber_loss(prediction[valid], target[valid], delta=0.5)
    )


def test_normalized_distances_see_directions_only() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(2, 5, 6)
    near = distance(one, other, "mse", normalize=True)
    torch.testing.assert_close(near, distance(3 * one, 0.1 * other, "mse", normalize=True))
    with pytest.raises(ValueError, match="allowed: mse, smoothl1 and huber"):
        distance(one, other, "l3")


def test_a_level_without_a_valid_token_is_zero_and_not_nan() -> None:
    rows = torch.randn(2, 3)
    nothing = torch.zeros(2, dtype=torch.bool)
    (loss,) = level_losses([rows], [rows + 1], [nothing], torch.zeros(1), "mse")
    assert loss.item() == 0.0


@pytest.mark.parametrize(("test", "count"), [(sigreg, 2000), (sigreg_by_points, 200)])
def test_sigreg_is_least_for_a_standard_normal_and_sees_scale_and_mean(
    test: Callable[[Tensor, Tensor], Tensor], count: int
) -> None:
    torch.manual_seed(0)
    rows, slices = torch.randn(count, 8), random_slices(100, 8, seed=3, device=torch.device("cpu"))
    normal = test(rows, slices)
    assert normal < 1e-2
    for changed in (3 * rows, 0.3 * rows, rows + 1):
        assert test(changed, slices) > 3 * normal
    assert torch.equal(slices, random_slices(100, 8, seed=3, device=torch.device("cpu")))
    torch.testing.assert_close(slices.norm(dim=1), torch.ones(100))


def covariance_term(rows: Tensor) -> Tensor:
    """The mean square of what is off the diagonal, by the formula."""
    covariance = torch.cov(rows.double().T)
    apart = ~torch.eye(len(covariance), dtype=torch.bool)
    return covariance[apart].square().mean()


def distance_by_points(rows: Tensor, slices: Tensor) -> Tensor:
    """The mean over slices of E k(x, x') - 2 E k(x, g) + E k(g, g'), by the formula."""
    points = torch.special.ndtri(torch.linspace(0.01, 0.99, 17)).double()

    def kernel(first: Tensor, second: Tensor) -> Tensor:
        return torch.exp(-(first[:, None] - second).square() / 2).mean()

    values = rows.double() @ slices.double().T
    distances = [kernel(x, x) - 2 * kernel(x, points) for x in values.T]
    return torch.stack(distances).mean() + kernel(points, points)


def test_terms_close_to_zero_keep_their_digits() -> None:
    # Independent features: what is left of both is small beside what they are made of.
    rows = torch.randn(3000, 16, generator=torch.Generator().manual_seed(0))
    slices = random_slices(4, 16, seed=0, device=rows.device)
    assert spread(rows)[1].item() == pytest.approx(covariance_term(rows).item(), rel=1e-6)
    few = rows[:300]
    expected = distance_by_points(few, slices).item()
    assert sigreg_by_points(few, slices).item() == pytest.approx(expected, rel=2e-6)


def test_equal_views_are_told_from_all_others() -> None:
    torch.manual_seed(0)
    views = torch.randn(6, 16)
    found = contrastive(views, views, temperature=0.1)
    assert found["accuracy"] == 1.0
    assert found["positive_similarity"].item() == pytest.approx(10, rel=1e-5)
    assert found["loss"] < contrastive(views, views.roll(1, 0))["loss"]


ROWS = 7


def mixing_terms(rows: Tensor) -> Tensor:
    variance, covariance = spread(rows)
    slices = random_slices(16, rows.shape[1], seed=0, device=rows.device)
    views = contrastive(rows, rows.flip(1))
    gathered = gather_rows(rows)
    return (
        (variance + covariance + sigreg(rows, slices) + sigreg(rows, slices, standardize=True))
        + sigreg_by_points(rows, slices, standardize=True)
        + views["loss"]
        + gathered.cumsum(0).square().mean()
    )


def mixed_on_this_process(size: int) -> tuple[float, list[list[float]]]:
    """The terms and the gradient of this process's rows, as the engine would scale them."""
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    cuts = {1: [0, ROWS], 2: [0, 3, ROWS]}[size]
    rows = all_rows()[cuts[world.rank] : cuts[world.rank + 1]].requires_grad_()
    total = mixing_terms(rows)
    # Each process owns its part of the term; the parts are added up.
    (total / size).backward()
    assert rows.grad is not None
    return total.item(), rows.grad.tolist()


def all_rows() -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))


def test_two_processes_mix_their_samples_as_one_would_with_gradient(
    run_processes: Callable[..., list[tuple[float, list[list[float]]]]],
) -> None:
    rows = all_rows().requires_grad_()
    total = mixing_terms(rows)
    total.backward()
    (first, top), (second, bottom) = run_processes(mixed_on_this_process, 2, 2)
    assert first == second == pytest.approx(total.item(), rel=1e-5)
    assert rows.grad is not None
    torch.testing.assert_close(torch.tensor(top + bottom), rows.grad, rtol=1e-4, atol=1e-6)
