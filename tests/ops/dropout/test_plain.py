"""overt/ops/dropout/plain.py: masks that are a function of seed and site."""

import pytest
import torch

from overt.ops.dropout.plain import dropout_plain, random_below, random_words

SEEDS = (0, 1, 12345678901234567, 2**62 - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_and_site_drop_the_same(seed: int) -> None:
    x = torch.ones(3, 700)
    first, again = (dropout_plain(x, torch.tensor(seed), 5, 0.3) for _ in range(2))
    assert torch.equal(first, again)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    for other in (
        dropout_plain(x, torch.tensor(seed), 6, 0.3),
        dropout_plain(x, torch.tensor(seed ^ 1), 5, 0.3),
        dropout_plain(x, torch.tensor(seed ^ 2**40), 5, 0.3),
    ):
        agreement = (other == first).float().mean().item()
        assert agreement == pytest.approx(0.7**2 + 0.3**2, abs=0.05)  # of independent masks


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_share_that_is_dropped_is_the_rate(rate: float) -> None:
    dropped = random_below(torch.Size([400, 500]), rate, torch.tensor(7), 3).float()
    assert dropped.mean().item() == pytest.approx(rate, abs=0.004)
    # Neither rows nor columns nor neighbours know of each other.
    assert dropped.mean(0).std().item() == pytest.approx((rate * (1 - rate) / 400) ** 0.5, rel=0.15)
    assert dropped.mean(1).std().item() == pytest.approx((rate * (1 - rate) / 500) ** 0.5, rel=0.15)
    together = (dropped[:, 1:] * dropped[:, :-1]).mean().item()
    assert together == pytest.approx(rate**2, abs=0.004)


def test_words_fill_32_bits_evenly() -> None:
    words = random_words(100_000, torch.tensor(99), 0).double() / 2**32
    assert words.min() >= 0
    assert words.max() < 1
    assert words.mean().item() == pytest.approx(0.5, abs=0.004)
    assert words.std().item() == pytest.approx(12**-0.5, abs=0.004)


def test_the_gradient_is_dropped_where_the_value_was() -> None:
    x = torch.randn(50, 40, requires_grad=True)
    y = dropout_plain(x, torch.tensor(3), 0, 0.25)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient == 0, y == 0)
