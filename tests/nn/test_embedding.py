"""Sines of positions: values by the formula, order of the channels."""

import math

import pytest
import torch

from overt.nn.embedding import fourier_encoding, sine_time_embedding


def test_time_embedding_is_sines_then_cosines() -> None:
    table = sine_time_embedding(5, 12)
    assert table.shape == (5, 12)
    assert table.dtype == torch.float32
    for k in range(6):
        angle = 3 * 10000 ** (-k / 6)
        assert table[3, k].item() == pytest.approx(math.sin(angle), abs=1e-7)
        assert table[3, 6 + k].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_fourier_encoding_goes_frequency_by_frequency() -> None:
    values = torch.tensor([[0.3, -0.2]])
    encoded = fourier_encoding(values, torch.tensor([1.0, 4.0]))[0].tolist()
    angles = [0.3, -0.2, 1.2, -0.8]
    expected = [0.3, -0.2, *map(math.sin, angles), *map(math.cos, angles)]
    assert encoded == pytest.approx(expected, abs=1e-6)
