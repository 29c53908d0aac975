"""overt/ops/layers/kernels.py against the definition."""

import pytest
import torch
from kernel_tests import DEVICE, kernel_test

from overt.data.tracking.procedural_scene import DRAWS, draw_scene
from overt.ops.layers.plain import shade_plain
from tests.data.tracking.procedural_values import small_settings


@kernel_test
@pytest.mark.parametrize("size", [(9, 7), (24, 40)])  # less than a block, and more
def test_colors_are_those_of_the_definition(size):
    from overt.ops.layers.kernels import shade_fused

    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(2, DRAWS, generator=generator)
    settings = small_settings(lights=1.0, motion_blur=1.0, holes=0.5, boxes=0.5)
    scene = draw_scene(numbers, 3, settings, min(size) / 2)
    textures = torch.randint(1 << 24, (4, 16, 16), generator=generator, dtype=torch.int32)
    which = (scene.texture * len(textures)).int()
    inputs = (scene.layers, scene.texture_map, which, scene.color, scene.light, scene.shutter)
    fused = shade_fused(*(part.to(DEVICE) for part in (*inputs, textures)), size).cpu()
    plain = shade_plain(*inputs, textures, size)
    assert plain.std() > 10  # or it would show nothing
    # Rounding moves a place of a random texture, or the outline of a layer, by very little.
    difference = (fused - plain).abs()
    assert difference.mean() < 0.05
    assert (difference > 2).double().mean() < 2e-3
