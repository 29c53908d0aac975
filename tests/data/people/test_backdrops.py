"""overt/data/people/backdrops.py: backgrounds are pictures, cameras keep them so."""

import numpy as np
import torch

from overt.data.people.backdrops import (
    Photographs,
    camera_effects,
    draw_surroundings,
    paint_backdrops,
)
from overt.nested import concatenated


def test_backgrounds_are_drawn_and_seen_through_a_camera() -> None:
    surroundings = concatenated(
        [draw_surroundings(20, np.random.default_rng(seed), Photographs(None)) for seed in range(4)]
    )
    pictures = paint_backdrops(surroundings.backdrop, 20)
    assert pictures.shape == (4, 3, 20, 20)
    assert float(pictures.std()) > 0.05
    seen = camera_effects(pictures, surroundings.lens, surroundings.noise)
    assert seen.shape == pictures.shape
    assert 0 <= float(seen.min()) <= float(seen.max()) <= 1
    assert not torch.equal(seen, pictures)
    alone = camera_effects(pictures[1:2], surroundings.lens[1:2], surroundings.noise[1:2])
    torch.testing.assert_close(alone, seen[1:2])
    stored = surroundings.to_bytes()
    assert (stored.backdrop.photograph.dtype, stored.noise.dtype) == (torch.uint8, torch.int8)
    restored = stored.from_bytes()
    torch.testing.assert_close(
        restored.noise, surroundings.noise.clamp(-3.9, 3.9), atol=0.1, rtol=0
    )
