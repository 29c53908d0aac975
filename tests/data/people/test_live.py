"""Live people: rendered from their numbers as they are written to files, whoever is beside them."""

import numpy as np
import pytest
import torch

from overt.data.people import live
from overt.data.people.backdrops import Photographs
from overt.data.people.live import Drawn, Studio, draw_live
from overt.data.people.painter import Painter
from overt.data.people.scenes import NEAREST_M, PeopleOptions, draw_rows, place_people
from overt.data.people.synthetic import render
from overt.data.rng import sample_rng
from overt.geometry.body import BODY_JOINTS, BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.nested import map_tensors, tensors_in

SIZE, PEOPLE, SEED = 40, 4, 4


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


@pytest.fixture(scope="module")
def drawn(model: BodyModel) -> Drawn:
    rest_joints = model.rest_places[:BODY_JOINTS].double().numpy()
    generators = [sample_rng(SEED, 0, index) for index in range(PEOPLE)]
    return Drawn.of([draw_live(rng, rest_joints, SIZE, Photographs(None)) for rng in generators])


@pytest.mark.parametrize(
    ("framing", "orthographic"), [("camera", False), ("camera", True), ("portrait", False)]
)
def test_pictures_are_those_that_are_written(
    model: BodyModel, drawn: Drawn, framing: str, orthographic: bool
) -> None:
    options = PeopleOptions(SIZE, SEED, framing, orthographic, body="capsule.npz")
    people, scene, generators = draw_rows(0, PEOPLE, model, options)
    depths = np.array([person.depth for person in people], np.float32)
    assert drawn.people.depth.tolist() == depths.tolist()  # nobody was too near and sampled again
    painter = Painter(model, SIZE)
    written = render(scene, model, painter, options, generators).pictures
    shots = Studio(options, model).shoot(drawn)
    difference = shots.pictures.permute(0, 2, 3, 1).int() - torch.from_numpy(written).int()
    # Backgrounds and noise travel as bytes: off by one, or by two where a dark one is brightened.
    assert difference.abs().max() <= 3
    assert difference.abs().float().mean() < 0.5
    torch.testing.assert_close(shots.depth, scene.joints[:, 0, 2])


def test_nobody_depends_on_the_batch(
    model: BodyModel, drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = Studio(PeopleOptions(SIZE, depth_maps=True, body="capsule.npz"), model)
    monkeypatch.setattr(live, "MOST_PIXELS", 2 * SIZE**2)  # two people at a time
    together = studio.shoot(drawn)
    alone = studio.shoot(map_tensors(drawn, lambda tensor: tensor[2:3]))
    for own, shared in zip(tensors_in(alone), tensors_in(together), strict=True):
        torch.testing.assert_close(own.float(), shared[2:3].float(), atol=1.01, rtol=1e-4)


def test_people_too_near_stand_further_away(model: BodyModel, drawn: Drawn) -> None:
    close = drawn.people._replace(depth=torch.full((PEOPLE,), 0.2))
    options = PeopleOptions(SIZE, body="capsule.npz")
    scene = place_people(close, model, options, move_back=True)
    assert (scene.vertices[..., 2].amin(1) > NEAREST_M - 1e-5).all()
    shots = Studio(options, model).shoot(drawn._replace(people=close))
    assert (shots.depth > 0.2).all()
    torch.testing.assert_close(shots.depth, scene.joints[:, 0, 2])
