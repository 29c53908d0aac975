"""Composes each configuration once for all tests of a process: most load the same few recipes.

Importing this is enough. Folders of a test's own are left out: their files may change.
"""

from copy import deepcopy
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

import overt.config.compose

PROJECT = Path(__file__).parents[1]
COMPOSE = overt.config.compose._compose


@cache
def _composed(overrides: tuple[str, ...], search: tuple[Path, ...]) -> DictConfig:
    return COMPOSE(list(overrides), list(search))


def compose(overrides: list[str], search: list[Path], with_hydra: bool = False) -> DictConfig:
    """What `overt.config.compose._compose` returns."""
    if with_hydra:
        return COMPOSE(overrides, search, with_hydra)
    if all(path.is_relative_to(PROJECT) for path in search):
        return deepcopy(_composed(tuple(overrides), tuple(search)))
    return COMPOSE(overrides, search)


overt.config.compose._compose = compose
# Processes that are forked from one that has imported this find what most of them train.
compose(["recipe=toy"], [PROJECT / "tests" / "toy_recipe" / "conf"])
