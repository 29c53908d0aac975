"""The states of the global random generators of all ranks, as tensors of a checkpoint.

Data never draws from these generators; dropout and other layers of the model do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from overt.distributed import gather_objects
from overt.errors import CheckpointError


def capture() -> dict[str, Tensor]:
    """Return the states of Python, NumPy, torch, and the current CUDA device or Apple GPU."""
    version, words, gauss = random.getstate()
    assert version == 3
    name, keys, index, has_gauss, cached = np.random.get_state(legacy=True)
    assert name == "MT19937"
    states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor(float("nan") if gauss is None else gauss, dtype=torch.float64),
        "numpy": torch.tensor(np.append(np.asarray(keys), [index, has_gauss]).astype(np.int64)),
        "numpy_gauss": torch.tensor(cached, dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore(states: dict[str, Tensor]) -> None:
    """Set the generators to these states; that of a GPU is ignored without such a GPU."""
    gauss = float(states["python_gauss"])
    words = tuple(int(word) for word in states["python"])
    random.setstate((3, words, None if gauss != gauss else gauss))
    *keys, index, has_gauss = (int(word) for word in states["numpy"])
    cached = float(states["numpy_gauss"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), index, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"].cpu())


def capture_all() -> dict[str, Tensor]:
    """Return the states of all ranks, on every rank; all must call this."""
    return {
        f"rank{rank}/{name}": state
        for rank, states in enumerate(gather_objects(capture()))
        for name, state in states.items()
    }


def restore_own(states: dict[str, Tensor], rank: int) -> bool:
    """Restore the generators of this rank; False where `states` has none of it."""
    prefix = f"rank{rank}/"
    rank_state = {
        key.removeprefix(prefix): state for key, state in states.items() if key.startswith(prefix)
    }
    if rank_state:
        _refuse_misfit(rank_state)
        try:
            restore(rank_state)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise CheckpointError(
                f"the random state of rank {rank} is invalid ({error}); use an older checkpoint"
            ) from error
    return bool(rank_state)


def _refuse_misfit(states: dict[str, Tensor]) -> None:
    """Refuse states of other names, shapes or types than those of this process."""
    current = capture()
    for name in {*states, *current} - {"cuda", "mps"}:
        kinds = [
            None if name not in held else (tuple(held[name].shape), held[name].dtype)
            for held in (states, current)
        ]
        if kinds[0] != kinds[1]:
            raise CheckpointError(
                f"the random state {name!r} is {kinds[0]} in the checkpoint, expected {kinds[1]}; "
                "use an older checkpoint"
            )


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the generators afterward: training continues with the same random numbers."""
    states = capture()
    try:
        yield
    finally:
        restore(states)
