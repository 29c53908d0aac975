"""overt/data/people/painter.py: dressed people in pictures, with a label for every pixel."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.people.backdrops import (
    Photographs,
    draw_backdrop,
    draw_occluder,
    draw_surroundings,
    paint_backdrops,
    paint_shapes,
)
from overt.data.people.outfits import HAIR, SHOES, SKIN, TOP, Looks, Tailor, draw_outfit
from overt.data.people.painter import Painter
from overt.data.people.scenes import PeopleOptions, draw_rows, see
from overt.data.rng import sample_rng
from overt.errors import DataError
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.nested import concatenated

SIZE = 48


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def painted(model: BodyModel, backgrounds: str | None = None) -> tuple[np.ndarray, ...]:
    """Two lively people on the project's own body."""
    options = PeopleOptions(size=SIZE, seed=3, framing="portrait", body="capsule.npz")
    _, scene, _ = draw_rows(0, 2, model, options)
    generators = [sample_rng(9, 0, number) for number in range(2)]
    painter = Painter(model, SIZE, backgrounds)
    looks = Looks.of([draw_outfit(rng) for rng in generators], painter.device)
    surroundings = concatenated(
        [draw_surroundings(SIZE, rng, painter.photographs) for rng in generators]
    )
    dressed = painter.tailor.dress(scene.vertices, looks)
    pixels, depth = see(scene, dressed, orthographic=False)
    made = painter.paint(pixels, depth, dressed, looks, surroundings)
    return made.pictures, made.parts, made.depth_m, (dressed - scene.vertices).numpy()


def test_pictures_and_labels_of_dressed_people(model: BodyModel) -> None:
    pictures, parts, depth, moved = painted(model)
    assert pictures.shape == (2, SIZE, SIZE, 3)
    assert pictures.dtype == np.uint8
    assert pictures.std() > 10
    share = (parts > 0).mean((1, 2))
    assert (share > 0.05).all()
    assert (share < 0.9).all()
    assert np.isfinite(depth[parts > 0]).all()
    assert not np.isfinite(depth[parts == 0]).any()
    # Cloth lies on the body, not far from it.
    thick = np.linalg.norm(moved, axis=-1)
    assert 0.001 < thick.max() < 0.08
    again = painted(model)
    np.testing.assert_array_equal(pictures, again[0])


def test_regions_are_where_they_belong(model: BodyModel) -> None:
    tailor = Tailor(model)
    outfit = draw_outfit(np.random.default_rng(0))._replace(
        sleeve=0.5, trouser=1.0, waist=0.05, hairline=0.2
    )
    looks = Looks.of([outfit], torch.device("cpu"))
    choice = looks.choice.expand(len(model.template), -1)
    region = tailor.regions(tailor.measures, choice)
    owner = model.skin_weights.argmax(1)
    assert (region[owner == 10] == SHOES).all()
    assert (region[owner == 20] == SKIN).all()  # a hand
    assert (region[owner == 9] == TOP).all()  # the chest
    hair = model.template[region == HAIR]
    face = model.template[(owner == 15) & (region == SKIN)]
    assert len(hair) > 0
    assert hair[:, 1].mean() > face[:, 1].mean()


def test_photographs_are_backgrounds(tmp_path: Path) -> None:
    Image.new("RGB", (60, 40), (255, 0, 0)).save(tmp_path / "red.png")
    photographs = Photographs(tmp_path)
    crop = photographs.crop(16, np.random.default_rng(0))
    assert crop.shape == (3, 16, 16)
    assert float(crop[0].min()) > 0.999
    assert float(crop[1:].max()) == 0.0
    drawn = concatenated([draw_backdrop(16, sample_rng(1, 0, n), photographs) for n in range(4)])
    chosen = drawn.is_photograph
    assert chosen.any()
    assert not chosen.all()
    is_red = paint_backdrops(drawn, 16)[:, 1:].amax((1, 2, 3)) == 0
    assert is_red.tolist() == chosen.tolist()
    with pytest.raises(DataError, match="no picture below it"):
        Photographs(tmp_path / "none")


def test_some_people_are_hidden_in_part() -> None:
    drawn = torch.stack([draw_occluder(np.random.default_rng(seed)) for seed in range(30)])
    colors, masks = paint_shapes(drawn, 16)
    assert colors.shape == (30, 3, 16, 16)
    hiding = masks.flatten(1).any(1)
    assert 3 < int(hiding.sum()) < 22
    assert not hiding[drawn[:, 0] == 0].any()
