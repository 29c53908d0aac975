"""Sources of training samples: by index, with their own order, or as streams.

Only the first is required. The others are recognized by their methods; a source needs no base
class.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from overt.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


class SampleSource(Protocol):
    """Training samples by index; all randomness of a sample comes from the given generator."""

    def __len__(self) -> int: ...

    def sample(self, index: int, rng: np.random.Generator) -> Any: ...


class EpochOrder(Protocol):
    """The sample indices of one epoch, by position.

    An array, a list or a range works; an object that computes slices needs no memory for them.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, positions: slice, /) -> Any: ...  # a sequence of integers


@runtime_checkable
class OrderedSource(SampleSource, Protocol):
    """A source that defines the order of its samples in an epoch.

    `order` must depend only on its arguments: it is called again on every rank and after a resume.
    It has as many positions as the source has samples.
    """

    def order(self, epoch: int, seed: int) -> EpochOrder: ...


@runtime_checkable
class SampleStream(SampleSource, Protocol):
    """A source whose samples are read by their position in an epoch.

    A sample must depend only on position, epoch and seed. A loader process requests increasing
    positions, until a new epoch or a resume. `sample(index, rng)` is that of epoch 0 and seed 0.
    """

    def sample_at(self, position: int, epoch: int, seed: int, rng: np.random.Generator) -> Any: ...


@runtime_checkable
class SplitStream(SampleStream, Protocol):
    """A stream that supports only some splits over ranks and loader processes."""

    def check_split(self, batch_size: int, world_size: int, num_workers: int) -> None:
        """Reject a split: samples per micro-batch, ranks, loader processes of each."""


def check_source(source: object) -> None:
    """Refuse what is not a source, such as a dataset of torch, before anything is read from it."""
    kind = type(source).__qualname__
    advice = "see `overt docs add_a_recipe`, Data"
    if not hasattr(source, "__len__"):
        raise ConfigError(
            f"build_dataset returned a {kind}, which has no length; a source has __len__ and "
            f"sample(index, rng) ({advice})"
        )
    sample = getattr(source, "sample", None)
    if not callable(sample):
        raise ConfigError(
            f"build_dataset returned a {kind}, which has no sample(index, rng); the loader is the "
            f"engine's, so a source needs that method instead of __getitem__ ({advice})"
        )
    try:
        inspect.signature(sample).bind(0, None)
    except TypeError as error:
        raise ConfigError(
            f"{kind}.sample cannot be called as sample(index, rng): {error} ({advice})"
        ) from None
    except ValueError:  # a function without a signature of Python
        return
