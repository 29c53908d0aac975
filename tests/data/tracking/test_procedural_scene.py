"""Where surfaces lie: from the image to a surface and back."""

import torch

from overt.data.tracking.procedural_scene import DRAWS, draw_scene, to_image
from overt.ops.layers.plain import Layer, to_surface
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
