"""overt/data/people/backdrops.py: backgrounds are pictures, cameras keep them so."""

import numpy as np
import torch

from overt.data.people.backdrops import Photographs, backdrop, camera_effects


def test_backgrounds_are_drawn_and_seen_through_a_camera() -> None:
    pictures = torch.stack(
        [backdrop(20, np.random.default_rng(seed), Photographs(None)) for seed in range(4)]
    )
    assert pictures.shape == (4, 3, 20, 20)
    assert float(pictures.std()) > 0.05
    generators = [np.random.default_rng(seed) for seed in range(4)]
    seen = camera_effects(pictures, generators)
    assert seen.shape == pictures.shape
    assert 0 <= float(seen.min()) <= float(seen.max()) <= 1
    assert not torch.equal(seen, pictures)
