"""overt/data/people/mixture.py: data sets are sampled by weight, whatever their sizes."""

import numpy as np
import pytest

from overt.data.people.mixture import DrawnMixture
from overt.errors import DataError


class Rows:
    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count

    def __len__(self) -> int:
        return self.count

    def sample(self, index: int, rng: np.random.Generator) -> tuple[str, int]:
        return self.name, index


def test_a_mixture_draws_by_share_whatever_the_sizes() -> None:
    mixture = DrawnMixture([Rows("a", 10), Rows("b", 4000)], [0.75, 0.25])
    assert len(mixture) == 4000
    drawn = [mixture.sample(0, np.random.default_rng(seed)) for seed in range(2000)]
    share = np.mean([name == "a" for name, _ in drawn])
    assert 0.71 < share < 0.79
    assert {row for name, row in drawn if name == "a"} == set(range(10))


def test_a_single_data_set_is_visited_row_by_row() -> None:
    mixture = DrawnMixture([Rows("a", 10)], [1.0])
    rows = [mixture.sample(row, np.random.default_rng(0))[1] for row in range(10)]
    assert rows == list(range(10))


def test_shares_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="above 0"):
        DrawnMixture([Rows("a", 1), Rows("b", 1)], [1.0, 0.0])
    with pytest.raises(DataError, match="2 data sets with 1 weights"):
        DrawnMixture([Rows("a", 1), Rows("b", 1)], [1.0])
