"""overt/recipes/lbm/cpu_step.py: the step of `FrameStep`, for a few points and for many."""

import pytest
import torch
from small_recipes import small_lbm
from torch import Tensor

from overt.recipes.lbm.cpu_step import FEW_POINTS, CpuStep
from overt.recipes.lbm.export import FrameStep
from overt.recipes.lbm.model import LBM

POINTS, MEMORY = 5, 4  # one more frame than the model was made for


def varied(**options: object) -> LBM:
    """A model with weights where a new one has zeros."""
    model = small_lbm(input_size=(64, 96), num_layers=3, **options).eval()
    for name, value in model.state_dict().items():
        if name.endswith(
            ("offsets.weight", "attention_weights.weight", "corr_conv.weight", "bias")
        ):
            value.normal_(std=0.2)
    return model


def frame_of_points() -> list[Tensor]:
    """A frame with two new points and three that are followed."""
    generator = torch.Generator().manual_seed(1)
    entries = torch.randn(2, 1, POINTS, MEMORY, 16, generator=generator)
    ignore = torch.rand(1, POINTS, MEMORY, generator=generator) < 0.5
    ignore[0, 1] = True  # a point that remembers nothing
    return [
        torch.randint(256, (1, 3, 64, 96), generator=generator).float(),
        torch.rand(1, POINTS, 2, generator=generator) * 64,
        torch.tensor([[True, False, False, True, False]]),
        torch.randn(1, POINTS, 16, generator=generator),
        *entries,
        ignore,
    ]


@pytest.mark.parametrize(
    ("expected_points", "num_levels"), [(FEW_POINTS, 3), (FEW_POINTS, 1), (FEW_POINTS + 1, 3)]
)
@torch.no_grad()
def test_the_step_is_that_of_any_runtime(expected_points: int, num_levels: int) -> None:
    model, inputs = varied(num_levels=num_levels), frame_of_points()
    results = CpuStep(model, MEMORY, 0.5, expected_points).eval()(*inputs)
    for result, wanted in zip(results, FrameStep(model, 0.5)(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("for_cpu", [False, True])
@torch.no_grad()
def test_where_a_followed_point_began_is_not_read(for_cpu: bool) -> None:
    model, inputs = varied(), frame_of_points()
    step = CpuStep(model, MEMORY, 0.5, FEW_POINTS).eval() if for_cpu else FrameStep(model, 0.5)
    wanted = step(*inputs)
    followed = ~inputs[2]
    inputs[1][followed] = torch.tensor([[float("nan"), 0.0], [float("inf"), -1e30], [1e30, 3.0]])
    for result, before in zip(step(*inputs), wanted, strict=True):
        torch.testing.assert_close(result, before, atol=0, rtol=0)
