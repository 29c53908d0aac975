"""The random numbers of a clip are taken in turn."""

import torch

from overt.data.tracking.procedural_draws import Draws


def test_draws_are_taken_in_turn():
    draws = Draws(torch.linspace(0, 1, 20)[None])
    first, second = draws.uniform(4), draws.uniform(2, 2, low=1.0, high=2.0)
    assert torch.allclose(first[0], torch.linspace(0, 1, 20)[:4])
    assert torch.allclose(second.flatten(), 1 + torch.linspace(0, 1, 20)[4:8])
    assert draws.normal(4).abs().max() < 3.1
