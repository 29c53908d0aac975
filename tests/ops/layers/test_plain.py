"""Outlines and textures of layers."""

import torch

from overt.data.tracking.procedural_scene import DRAWS, draw_scene
from overt.ops.layers.api import shade
from overt.ops.layers.plain import Layer, cover
from tests.data.tracking.procedural_values import small_settings


def scene(**changed):
    generator = torch.Generator().manual_seed(0)
    return draw_scene(torch.rand(3, DRAWS, generator=generator), 6, small_settings(**changed), 16.0)


def test_the_background_covers_everything():
    made = scene()
    layer = Layer(*made.layers[:, :, 0, :, None].unbind(0))
    assert (cover(layer, torch.linspace(-5, 5, 9), torch.linspace(5, -5, 9)) == 1).all()


def test_a_layer_covers_its_middle_and_not_all():
    made = scene(present=1.0, holes=0.0, thin=0.0)
    layer = Layer(*made.layers[:, :, 1:, 0].unbind(0))
    assert (cover(layer, torch.zeros(1), torch.zeros(1)) > 0.5).float().mean() > 0.9
    assert (cover(layer, torch.full((1,), 6.0), torch.zeros(1)) == 0).all()


def test_a_plain_texture_is_one_color_in_even_light():
    made = scene(lights=0.0)
    color = torch.tensor([1.0, 1, 1, 0, 0, 0]).expand(3, made.layers.shape[2], 6)
    which = torch.zeros(3, made.layers.shape[2], dtype=torch.int32)
    textures = torch.full((1, 4, 4), 200 + 256 * 100 + 65536 * 50, dtype=torch.int32)
    colors = shade(
        made.layers, made.texture_map, which, color, made.light, made.shutter, textures, (8, 6)
    )
    assert colors.shape == (3, 6, 3, 8, 6)
    assert torch.allclose(colors, torch.tensor([200.0, 100, 50]).view(3, 1, 1).expand_as(colors))
