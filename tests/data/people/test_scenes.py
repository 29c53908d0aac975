"""Drawn people: what perspective shows of their depth, and the distortion of subsets."""

import numpy as np
import torch

from overt.data.people.scenes import (
    PeopleOptions,
    PeopleTensors,
    draw_rows,
    finished,
    moved_back,
    place_people,
    see,
    sketch_lively_person,
)
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body

SIZE = 48


def test_orthographic_people_do_not_show_their_depth() -> None:
    """Twice as far, the same picture; with perspective it changes."""
    model = BodyModel(capsule_body())
    for orthographic in (True, False):
        options = PeopleOptions(
            size=SIZE, framing="portrait", orthographic=orthographic, body="capsule"
        )
        people, scene, _ = draw_rows(0, 2, model, options)
        further = [person._replace(depth=2 * person.depth) for person in people]
        far = place_people(PeopleTensors.of(further, model.template.device), model, options)
        near_pixels, _ = see(scene, scene.vertices, orthographic)
        far_pixels, _ = see(far, far.vertices, orthographic)
        same = torch.allclose(near_pixels, far_pixels, atol=0.02)
        assert same == orthographic


def test_people_have_the_same_bits_in_any_batch() -> None:
    rest_joints = BodyModel(capsule_body()).rest_places[:22].double().numpy()
    sketches = [sketch_lively_person(np.random.default_rng(n), rest_joints) for n in range(9)]
    alone = [finished([sketch])[0] for sketch in sketches]
    for own, shared in zip(alone, finished(sketches), strict=True):
        for value, other in zip(own, shared, strict=True):
            np.testing.assert_array_equal(value, other)
        assert np.abs(own.body[[0, 1, 15, 16]]).max(1).min() > 0  # thighs and upper arms


def test_subsets_keep_their_distortion() -> None:
    model = BodyModel(capsule_body())
    for subset, low, high in (("p3", 1.8, 1e9), ("far", 0.0, 1.2)):
        options = PeopleOptions(size=SIZE, subset=subset, body="capsule")
        _, scene, _ = draw_rows(0, 4, model, options)
        assert (scene.distortion >= low).all()
        assert (scene.distortion <= high).all()


def test_depths_that_are_too_small_become_others_as_if_sampled_again() -> None:
    ranks = torch.linspace(0.0005, 0.9995, 1000)
    close, far = 0.4 * 5 ** (ranks[:600] / 0.6), 2 * 4 ** ((ranks[600:] - 0.6) / 0.4)
    depth = torch.cat([close, far])
    nearest = torch.full_like(depth, 0.9)
    moved = moved_back(depth, nearest)
    assert torch.equal(moved[depth >= 0.9], depth[depth >= 0.9])
    quantiles = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    expected = depth[depth >= 0.9].quantile(quantiles)
    torch.testing.assert_close(moved.quantile(quantiles), expected, atol=0, rtol=0.01)
    assert torch.equal(moved_back(depth, 0 * nearest + 0.3), depth)
