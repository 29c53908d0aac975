"""overt/data/people/backdrops.py: backgrounds are pictures, cameras keep them so."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

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


def test_photographs_are_mixed_with_computed_backgrounds_and_decoded_once(tmp_path: Path) -> None:
    for number, level in enumerate((60, 200)):
        pixels = np.full((30, 50, 3), level, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    (tmp_path / "._0.png").write_bytes(b"hidden, as macOS writes")

    def fraction(photographs: Photographs) -> float:
        drawn = [
            draw_surroundings(16, np.random.default_rng(seed), photographs) for seed in range(60)
        ]
        backdrops = concatenated(drawn).backdrop
        pictures = paint_backdrops(backdrops, 16)[backdrops.is_photograph]
        assert set((255 * pictures).round().unique().tolist()) <= {60, 200}
        return float(backdrops.is_photograph.float().mean())

    assert abs(fraction(Photographs(tmp_path, 0.4)) - 0.4) < 0.2
    assert fraction(Photographs(tmp_path, 0.0)) == 0
    photographs = Photographs(tmp_path)
    assert abs(fraction(photographs) - 0.8) < 0.2
    first = photographs.pixels(photographs.paths[0])
    assert photographs.pixels(photographs.paths[0]) is first
    full = Photographs(tmp_path)
    full.free_bytes = 100  # no room: decoded each time
    assert full.pixels(full.paths[0]) is not full.pixels(full.paths[0])
