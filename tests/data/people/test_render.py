"""overt/data/people/render.py: pictures follow from their generators, light and labels fit."""

import numpy as np
import pytest
import torch
from torch import Tensor

from overt.data.people.render import (
    NOISE,
    Look,
    Painted,
    background,
    draw_look,
    paint,
    vertex_normals,
)
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body

SIDE = 24


def look(kind: int = 0, **changed: object) -> Look:
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])
    plain = Look(np.full((25, 3), 0.5), np.zeros(2), np.array([0, 0, -1.0]), 1.0, corners, kind)
    return plain._replace(**changed)


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def paint_one(model: BodyModel, chosen: Look, seed: int = 0) -> Painted:
    """The person at rest, upright in the middle, three meters away."""
    vertices = model.template[None] * torch.tensor([1.0, -1.0, -1.0])
    vertices = vertices - vertices.mean(1, keepdim=True) + torch.tensor([0.0, 0.0, 3.0])
    pixels = 30 * vertices[..., :2] / vertices[..., 2:] + SIDE / 2
    generators = [np.random.default_rng(seed)]
    return paint(pixels, vertices[..., 2], vertices, model, [chosen], SIDE, generators)


def test_a_look_is_a_function_of_its_generator() -> None:
    first, again, other = (
        draw_look(np.random.default_rng(seed), fixed_colors=False) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.colors, other.colors)
    assert np.linalg.norm(first.light) == pytest.approx(1.0)


def test_fixed_colors_tell_the_parts_apart_in_every_picture() -> None:
    looks = [draw_look(np.random.default_rng(seed), fixed_colors=True) for seed in range(20)]
    colors = np.stack([each.colors for each in looks])
    assert np.ptp(colors, axis=0).max() <= 0.1 + 1e-9
    assert {each.kind for each in looks} == {0}


def test_normals_point_outwards_and_have_length_one(model: BodyModel) -> None:
    normals = vertex_normals(model.template[None], model.faces)[0]
    torch.testing.assert_close(normals.norm(dim=-1), torch.ones(len(normals)))
    # A tetrahedron about the origin: every normal points away from it.
    corners = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    faces = torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]])
    found = vertex_normals(corners[None], faces)[0]
    torch.testing.assert_close(found, torch.nn.functional.normalize(corners, dim=-1))


def test_a_gradient_runs_between_its_corners() -> None:
    picture = background(look(), 9, np.random.default_rng(0))
    assert picture.shape == (9, 9, 3)
    found = [picture[0, 0], picture[0, -1], picture[-1, 0], picture[-1, -1], picture[4, 4]]
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0.5, 0.5, 0]]
    torch.testing.assert_close(torch.stack(found), torch.tensor(expected).float())


@pytest.mark.parametrize("kind", [1, 2])
def test_other_backgrounds_are_drawn_from_the_generator(kind: int) -> None:
    def drawn(seed: int) -> Tensor:
        return background(look(kind), 32, np.random.default_rng(seed))

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))
    assert not torch.equal(drawn(3), background(look(), 32, np.random.default_rng(3)))
    assert drawn(3).min() >= 0
    assert drawn(3).max() <= 1


def test_masks_depth_and_picture_agree(model: BodyModel) -> None:
    painted = paint_one(model, look(background=np.zeros((4, 3))))
    person = painted.parts[0] > 0
    assert 0.05 < person.mean() < 0.9
    assert np.isfinite(painted.depth_m[0][person]).all()
    assert np.isinf(painted.depth_m[0][~person]).all()
    assert np.abs(painted.depth_m[0][person] - 3).max() < 0.5
    # Full ambient light and no stripes: the person is gray, the background black, but for noise.
    inside = painted.pictures[0][person].mean() / 255
    outside = painted.pictures[0][~person].mean() / 255
    assert inside > 0.3
    assert outside < 0.1 + 3 * NOISE


def test_the_side_towards_the_light_is_brighter(model: BodyModel) -> None:
    dim = look(ambient=0.1, background=np.zeros((4, 3)))
    front = paint_one(model, dim)  # the light is behind the camera
    back = paint_one(model, dim._replace(light=np.array([0, 0, 1.0])))
    person = front.parts[0] > 0
    assert front.pictures[0][person].mean() > 2 * back.pictures[0][person].mean()


def test_only_noise_differs_between_generators(model: BodyModel) -> None:
    one, same, other = (paint_one(model, look(), seed) for seed in (0, 0, 1))
    assert np.array_equal(one.pictures, same.pictures)
    assert np.array_equal(one.parts, other.parts)
    difference = np.abs(one.pictures.astype(int) - other.pictures.astype(int))
    assert 0 < difference.max() < 255 * 12 * NOISE
