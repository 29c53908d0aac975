"""overt/recipes/blade/loss.py: an unknown depth costs nothing."""

import torch

from overt.recipes.blade.loss import depth_errors


def test_an_unknown_depth_costs_nothing_and_has_no_gradient() -> None:
    predicted = torch.tensor([1.0, 2.0], requires_grad=True)
    errors = depth_errors(predicted, torch.tensor([2.0, 0.0]), torch.tensor([True, False]))
    assert errors.tolist() == [0.5, 0.0]
    errors.sum().backward()
    assert predicted.grad.tolist() == [-0.5, 0.0]
