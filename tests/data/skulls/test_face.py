"""overt/data/skulls/face.py: orbits are open in front, closed above, and behind a nose."""

from dataclasses import replace

import numpy as np
import pytest

from overt.data.skulls.cranium import Cranium
from overt.data.skulls.face import Face, add_face, orbits
from overt.data.skulls.grids import node_grid, voxel_grid
from overt.geometry.voxels import Mask


def sample(seed: int) -> tuple[Cranium, Face]:
    rng = np.random.default_rng(seed)
    cranium = Cranium.sample(rng)
    return cranium, Face.sample(rng, cranium)


def test_sizes_are_those_of_adults_and_fit_to_the_braincase() -> None:
    for seed in range(200):
        cranium, face = sample(seed)
        aside, y, z = face.center
        lateral = aside + face.half_width
        assert 45 < lateral < 52.5
        assert 9 < aside - face.half_width < 14.5  # the nose is between the orbits
        assert 29 < face.apex[1] - y < 60  # deep
        roof = z + face.half_height
        assert -1 <= roof - cranium.anterior <= 7
        assert abs(y - cranium.front(aside, roof)) < 15
        assert face.palate < z - face.half_height < z
        assert -97 < face.nose[1] <= face.nasion[1]


@pytest.fixture(scope="module", params=range(3))
def faces(request: pytest.FixtureRequest) -> tuple[Face, Mask, Mask]:
    """Sizes, the bones of a face without braincase, and the cavities of the orbits."""
    _, face = sample(request.param)
    at = voxel_grid(node_grid(np.eye(3)), 100)
    box = at.box((-100.0, -110.0, -110.0), (100.0, 10.0, 30.0))
    near = at.crop(box)
    orbit = orbits(face, near)
    bone, cavity = np.zeros(at.x.shape, bool), np.zeros(at.x.shape, bool)
    bone[box] = add_face(face, near, bone[box], orbit, np.random.default_rng(0))
    cavity[box] = (orbit.outside < 0) & (orbit.along < 1)
    return face, bone, cavity


def index_of(x: float, y: float, z: float) -> tuple[int, int, int]:
    i, j, k = (int((p + m + 100) / 2) for p, m in zip((x, y, z), (0.0, 2.0, 10.0), strict=True))
    return i, j, k


@pytest.mark.parametrize("sign", [-1, 1])
def test_orbits_are_open_to_the_front_and_have_a_lateral_wall(
    faces: tuple[Face, Mask, Mask], sign: int
) -> None:
    face, bone, cavity = faces
    assert not (bone & cavity).any()
    aside, y, z = face.center
    i, j, k = index_of(sign * aside, y + 5, z)
    assert cavity[i, j, k]
    assert not bone[i, : j + 1, k].any()  # out to the front
    # Behind the rim the lateral wall bounds the cavity at every height but those of its edges.
    i, j, k = index_of(sign * aside, face.rim_y[1] + 8, z)
    outward = bone[i:, j, k - 3 : k + 4] if sign > 0 else bone[: i + 1, j, k - 3 : k + 4]
    assert outward.any(axis=0).all()


def test_cheekbones_leave_the_temporal_fossa_open(faces: tuple[Face, Mask, Mask]) -> None:
    face, bone, _ = faces
    for sign in (-1, 1):
        _, j, _ = index_of(0, face.rim_y[1] + 30, 0)
        half = bone[50:, j] if sign > 0 else bone[49::-1, j]  # from the midline out
        arch = half[int((face.arch - 10) / 2) :].any(axis=0)
        assert arch.any()
        level = int(np.flatnonzero(arch).mean())
        line = np.flatnonzero(half[:, level])
        assert line[-1] * 2 > face.arch - 6
        assert not half[int(face.arch / 2) - 6 : int(face.arch / 2) - 3, level].any()


def test_more_gaps_leave_less_thin_bone() -> None:
    _, face = sample(0)
    at = voxel_grid(node_grid(np.eye(3)), 100)
    box = at.box((-60.0, -100.0, -60.0), (60.0, -20.0, 10.0))
    near = at.crop(box)
    orbit = orbits(face, near)
    empty = np.zeros(near.x.shape, bool)
    counts = [
        int(add_face(replace(face, gaps=gaps), near, empty, orbit, np.random.default_rng(0)).sum())
        for gaps in (0.0, 0.9)
    ]
    assert 0.5 * counts[0] < counts[1] < 0.98 * counts[0]
