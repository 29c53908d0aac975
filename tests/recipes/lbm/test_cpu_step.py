"""overt/recipes/lbm/cpu_step.py: the step of `FrameStep`, for a few points and for many."""

import pytest
import torch
from small_recipes import small_lbm

from overt.recipes.lbm.cpu_step import FEW_POINTS, CpuStep
from overt.recipes.lbm.export import FrameStep

POINTS, MEMORY = 5, 4  # one more frame than the model was made for


@pytest.mark.parametrize("expected_points", [FEW_POINTS, FEW_POINTS + 1])
@torch.no_grad()
def test_the_step_is_that_of_any_runtime(expected_points: int) -> None:
    model = small_lbm(input_size=(64, 96), num_layers=3).eval()
    for name, value in model.state_dict().items():
        if name.endswith(
            ("offsets.weight", "attention_weights.weight", "corr_conv.weight", "bias")
        ):
            value.normal_(std=0.2)
    generator = torch.Generator().manual_seed(1)
    entries = torch.randn(2, 1, POINTS, MEMORY, 16, generator=generator)
    ignore = torch.rand(1, POINTS, MEMORY, generator=generator) < 0.5
    ignore[0, 1] = True  # a point that remembers nothing
    inputs = (
        torch.randint(256, (1, 3, 64, 96), generator=generator).float(),
        torch.rand(1, POINTS, 2, generator=generator) * 64,
        torch.tensor([[True, False, False, True, False]]),
        torch.randn(1, POINTS, 16, generator=generator),
        *entries,
        ignore,
    )
    results = CpuStep(model, MEMORY, 0.5, expected_points).eval()(*inputs)
    for result, wanted in zip(results, FrameStep(model, 0.5)(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, atol=1e-4, rtol=1e-4)
