"""overt/nn/dropout.py: dropout modules tell their uses of one seed apart."""

import torch
from torch import nn

from overt.nn.dropout import SeededDropout, number_sites


def test_every_module_below_a_root_gets_its_own_site() -> None:
    root = nn.Sequential(SeededDropout(0.5), nn.Sequential(nn.Linear(2, 2), SeededDropout(0.5)))
    assert number_sites(root) == 2
    x, seed = torch.ones(64, 64), torch.tensor(11)
    first, second = root[0](x, seed), root[1][1](x, seed)
    assert not torch.equal(first, second)
    assert torch.equal(first, root[0](x, seed))


def test_nothing_is_dropped_without_a_seed_or_in_evaluation() -> None:
    module, x = SeededDropout(0.5), torch.ones(8, 8)
    assert module(x, None) is x
    assert module.eval()(x, torch.tensor(0)) is x
    assert SeededDropout(0.0)(x, torch.tensor(0)) is x
