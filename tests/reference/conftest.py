"""Reference cases are float32 on the CPU, and each must stand by itself."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """A model is filled by the rule after construction; nothing else may be left to chance."""
    torch.manual_seed(0)
