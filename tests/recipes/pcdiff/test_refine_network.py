"""overt/recipes/pcdiff/refine_network.py: points count at their nodes, and all inputs matter."""

import torch

from overt.recipes.pcdiff.refine_network import RefinementNetwork, count_points


def test_points_are_counted_at_the_nearest_node_and_not_outside() -> None:
    points = torch.tensor(
        [[[0.0, 0.0, 0.0], [0.26, 0.5, 0.99], [0.25, 0.5, 0.74], [-1.0, 0.5, 0.5]]]
    )
    counts = count_points(torch.cat([points, points.flip(1)]), 4)  # nodes at 0, 1/4, 1/2, 3/4
    assert counts.shape == (2, 4, 4, 4)
    assert counts[0, 0, 0, 0] == 1
    assert counts[0, 1, 2, 3] == 1
    assert counts.sum() == 4  # of a point at 0.99 the nearest node would be the one at 1
    assert torch.equal(counts[0], counts[1])


def test_every_input_has_an_influence() -> None:
    torch.manual_seed(0)
    model = RefinementNetwork(width=8, levels=2)
    bone = torch.rand(2, 8, 8, 8) < 0.3
    points = torch.rand(2, 50, 3) * 0.9
    logits = model(bone, bone.flip(1), points)
    assert logits.shape == (2, 8, 8, 8)
    for other in (
        (~bone, bone.flip(1), points),
        (bone, bone, points),
        (bone, bone.flip(1), -points),
    ):
        assert (model(*other) - logits).abs().max() > 1e-3
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
