"""overt/data/people/outfits.py: looks of people, each from its own generator."""

import numpy as np
import torch

from overt.data.people.outfits import (
    PATTERNS,
    REGIONS,
    SKIN,
    Looks,
    draw_outfit,
    smooth_noise,
    take_rows,
)


def test_outfits_differ_and_come_back() -> None:
    outfits = [draw_outfit(np.random.default_rng(seed)) for seed in range(8)]
    again = draw_outfit(np.random.default_rng(3))
    np.testing.assert_array_equal(outfits[3].colors, again.colors)
    assert len({tuple(outfit.colors[SKIN].round(3)) for outfit in outfits}) == 8
    assert all((outfit.colors >= 0).all() and (outfit.colors <= 1).all() for outfit in outfits)
    assert all((outfit.pattern < len(PATTERNS)).all() for outfit in outfits)


def test_light_falls_on_what_faces_it() -> None:
    outfit = draw_outfit(np.random.default_rng(0))
    looks = Looks.of([outfit], torch.device("cpu"))
    towards = looks.lights[0, :1, :3]
    person = torch.zeros(1, dtype=torch.int64)
    assert (looks.light(person, towards) > looks.light(person, -towards)).all()
    places = torch.randn(50, 3)
    many = person.expand(50)
    colors = looks.texture(many, torch.arange(50) % REGIONS, places)
    assert colors.shape == (50, 3)
    assert torch.isfinite(colors).all()
    assert float(smooth_noise(looks.waves, places).abs().max()) < 2.5


def test_rows_of_a_table_are_taken_as_by_brackets() -> None:
    table, index = torch.randn(5, 2, 3), torch.tensor([4, 0, 0, 2])
    assert torch.equal(take_rows(table, index), table[index])
