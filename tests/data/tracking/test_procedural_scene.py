"""Where surfaces lie: from the image to a surface and back."""

import torch

from overt.data.tracking.procedural_scene import (
    DRAWS,
    Draws,
    Layer,
    cover,
    draw_scene,
    to_image,
    to_surface,
)
from tests.data.tracking.procedural_values import small_settings


def scene(**changed):
    generator = torch.Generator().manual_seed(0)
    return draw_scene(torch.rand(3, DRAWS, generator=generator), 6, small_settings(**changed), 16.0)


def test_there_and_back():
    """`to_image` undoes `to_surface` wherever the image shows the surface, bends included."""
    made = scene(bend=0.1)
    x, y = torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5), indexing="ij")
    for number in range(made.layers.shape[2]):
        layer = Layer(*made.layers[:, :, number, :, None, None].unbind(0))
        forward = made.forward[:, :, number, :, None, None]
        back_x, back_y = to_image(layer, forward, *to_surface(layer, x, y))
        error = torch.maximum((back_x - x).abs(), (back_y - y).abs())
        assert error.max() < 2e-3


def test_the_background_covers_everything():
    made = scene()
    layer = Layer(*made.layers[:, :, 0, :, None].unbind(0))
    assert (cover(layer, torch.linspace(-5, 5, 9), torch.linspace(5, -5, 9)) == 1).all()


def test_a_layer_covers_its_middle_and_not_all():
    made = scene(present=1.0, holes=0.0, thin=0.0)
    layer = Layer(*made.layers[:, :, 1:, 0].unbind(0))
    assert (cover(layer, torch.zeros(1), torch.zeros(1)) > 0.5).float().mean() > 0.9
    assert (cover(layer, torch.full((1,), 6.0), torch.zeros(1)) == 0).all()


def test_draws_are_taken_in_turn():
    draws = Draws(torch.linspace(0, 1, 20)[None])
    first, second = draws.uniform(4), draws.uniform(2, 2, low=1.0, high=2.0)
    assert torch.allclose(first[0], torch.linspace(0, 1, 20)[:4])
    assert torch.allclose(second.flatten(), 1 + torch.linspace(0, 1, 20)[4:8])
    assert draws.normal(4).abs().max() < 3.1
