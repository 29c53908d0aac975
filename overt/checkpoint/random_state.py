"""The states of the global random generators of processes, as tensors that a checkpoint holds.

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


def capture() -> dict[str, Tensor]:
    """Python's, NumPy's and torch's generators, with that of the current CUDA device if any."""
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
    return states


def restore(states: dict[str, Tensor]) -> None:
    """Put the generators back. A CUDA state is left alone where there is no CUDA device."""
    gauss = float(states["python_gauss"])
    words = tuple(int(word) for word in states["python"])
    random.setstate((3, words, None if gauss != gauss else gauss))
    *keys, index, has_gauss = (int(word) for word in states["numpy"])
    cached = float(states["numpy_gauss"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), index, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def capture_all() -> dict[str, Tensor]:
    """The generators of all processes, on each of them; every process must call this."""
    return {
        f"rank{rank}/{name}": state
        for rank, states in enumerate(gather_objects(capture()))
        for name, state in states.items()
    }


def restore_own(states: dict[str, Tensor], rank: int) -> bool:
    """Put the generators of this rank back; False where it has none among those of all."""
    prefix = f"rank{rank}/"
    own = {key.removeprefix(prefix): one for key, one in states.items() if key.startswith(prefix)}
    if own:
        restore(own)
    return bool(own)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever happens inside, training goes on with the random numbers it would have had."""
    states = capture()
    try:
        yield
    finally:
        restore(states)
