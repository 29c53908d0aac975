"""The rule by which the reference cases fill a model: weights from names and shapes alone."""

import zlib
from functools import lru_cache

import numpy as np
import torch
from torch import nn


@lru_cache(maxsize=400)  # the entries of one model: most cases of a recipe share it
def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 array that the rule gives to an entry of this name and shape, to be read only."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    noise = random.standard_normal(shape if shape else (1,)).astype(np.float32).reshape(shape)
    if name.endswith("running_var"):
        return 1.0 + 0.1 * np.abs(noise)
    if name.endswith("running_mean"):
        return 0.1 * noise
    if len(shape) >= 2:
        fan_in = int(np.prod(shape[1:]))
        return noise / np.float32(np.sqrt(fan_in))
    if name.endswith("weight"):
        return 1.0 + 0.1 * noise
    return 0.1 * noise


@torch.no_grad()
def fill(model: nn.Module) -> nn.Module:
    """Overwrite every float parameter and every running statistic of `model`, in place."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for key, tensor in model.state_dict(keep_vars=True).items():
        is_statistic = key.endswith(("running_mean", "running_var"))
        if tensor.is_floating_point() and (key in parameters or is_statistic):
            tensor.copy_(torch.from_numpy(values(key, tuple(tensor.shape))))
    return model
