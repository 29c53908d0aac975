"""Numbers that fall when features become alike."""

import pytest
import torch
from torch import Tensor

from overt.metrics.collapse import image_statistics, spectrum_scores, token_statistics


def test_equal_directions_have_full_rank_and_one_direction_has_rank_one() -> None:
    rows = torch.cat([torch.eye(6), -torch.eye(6)])
    std, least, size, rank = token_statistics(rows).tolist()
    assert rank == pytest.approx(6)
    assert size == pytest.approx(1)
    assert std == least == pytest.approx((2 / 11) ** 0.5)
    line = torch.linspace(-1, 1, 9)[:, None] * torch.ones(6)
    assert token_statistics(line)[3].item() == pytest.approx(1, abs=1e-5)


def test_an_offset_does_not_hide_behind_the_rank_and_scale_shows_in_std_only() -> None:
    torch.manual_seed(0)
    rows = torch.randn(200, 5)
    before, moved, small = (token_statistics(x) for x in (rows, rows + 100, rows * 1e-3))
    torch.testing.assert_close(before[[0, 1, 3]], moved[[0, 1, 3]], rtol=1e-4, atol=0)
    assert small[3].item() == pytest.approx(before[3].item(), rel=1e-6)
    assert small[0].item() == pytest.approx(1e-3 * before[0].item(), rel=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_give_nan_and_no_error(value: float) -> None:
    rows = torch.randn(20, 5)
    rows[3, 2] = value
    assert token_statistics(rows)[3].isnan()
    assert image_statistics(rows)[2].isnan()


def test_it_is_the_entropy_of_the_singular_values() -> None:
    torch.manual_seed(0)
    rows = torch.randn(50, 4, dtype=torch.float64) @ torch.randn(4, 12, dtype=torch.float64)
    singular = torch.linalg.svdvals(rows - rows.mean(0))
    shares = singular[:4] / singular[:4].sum()
    expected = torch.exp(-(shares * shares.log()).sum())
    assert token_statistics(rows)[3].item() == pytest.approx(expected.item(), rel=1e-6)
    assert image_statistics(rows.view(50, 3, 4))[2].item() <= 4.001


def by_definition(rows: Tensor, epsilon: float) -> float:
    singular = torch.linalg.svdvals(rows)
    fractions = singular / singular.sum()
    return torch.exp(-(fractions * torch.log(fractions + epsilon)).sum()).item()


@pytest.mark.parametrize("shape", [(16, 10, 24), (100, 1, 300), (120, 2, 30)])
@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
def test_what_has_nearly_collapsed_keeps_its_small_singular_values(
    shape: tuple[int, int, int], spread: float
) -> None:
    """Rounded to float32, features of rank 3 about a common point have every rank, by little."""
    torch.manual_seed(0)
    factors = torch.randn(*shape[:2], 3), torch.randn(3, shape[2])
    features = (1 + spread * factors[0] @ factors[1]).double()
    rows, tokens = features.flatten(1)[:100], features.flatten(0, 1)
    found = image_statistics(features.float())[2].item()
    assert found == pytest.approx(by_definition(rows, 1e-8), rel=1e-9)
    found = token_statistics(tokens.float())[3].item()
    assert found == pytest.approx(by_definition(tokens - tokens.mean(0), 1e-12), rel=1e-7)


def test_the_spectrum_tells_rank_and_decay_without_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4000, 16, generator=generator, dtype=torch.float64)
    even = spectrum_scores(rows)
    assert even["rankme"] == pytest.approx(16, rel=0.01)
    assert even["alpha_req"] == pytest.approx(0, abs=0.1)
    falling = spectrum_scores(rows * torch.arange(1, 17) ** -1.0)  # eigenvalues n ** -2
    assert falling["alpha_req"] == pytest.approx(2, abs=0.1)
    assert 1 < falling["rankme"] < even["rankme"]
    assert spectrum_scores(torch.ones(9, 4))["rankme"] == pytest.approx(1, abs=1e-3)
    rows[0, 0] = torch.nan
    assert spectrum_scores(rows)["rankme"] != spectrum_scores(rows)["rankme"]
