"""Dropout by a seed that is handed along, so that a block run twice drops the same twice."""

from __future__ import annotations

from torch import Tensor, nn

from overt.ops.dropout.api import dropout


class SeededDropout(nn.Module):
    """Drops in training, where a seed is given; modules with one seed need different sites."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.site = 0

    def forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        """`seed` is () int64, on the device of `x`."""
        if seed is None or self.rate == 0 or not self.training:
            return x
        return dropout(x, seed, self.site, self.rate)


def number_sites(root: nn.Module) -> int:
    """Give every seeded dropout below `root` a separate site; how many there are."""
    sites = [module for module in root.modules() if isinstance(module, SeededDropout)]
    for index, module in enumerate(sites):
        module.site = index
    return len(sites)
