"""overt/data/skulls/shapes.py: synthetic skulls are closed, open where skulls are, and differ."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, label

from overt.data.skulls import shapes
from overt.data.skulls.shapes import HEAD_MM, MIDDLE_MM, Gap, Head
from overt.geometry.voxels import Mask

SIDE = 64
FINE = 128
EVERYWHERE = np.ones((3, 3, 3), dtype=bool)  # neighbors by faces, edges and corners


@pytest.fixture(scope="module")
def skull() -> np.ndarray:
    return shapes.make_skull(np.random.default_rng(1), SIDE)


@pytest.fixture(scope="module")
def head() -> Head:
    """An upright head without holes that is large enough for every structure."""
    head = Head.sample(np.random.default_rng(5))
    cranium = replace(head.cranium, sinus=(11.0, 24.0, 0.0, 18.0))
    return replace(head, cranium=cranium, tilt=(0.0, 0.0, 0.0), gaps=(), cut=-90.0)


@pytest.fixture(scope="module")
def fine(head: Head) -> np.ndarray:
    return shapes.build_skull(head, FINE)


def height(side: int) -> np.ndarray:
    """z of the voxels in mm from the center of the vault."""
    return (np.arange(side) + 0.5) * HEAD_MM / side - HEAD_MM / 2 - MIDDLE_MM[2]


def middle(side: int) -> tuple[int, int, int]:
    x, y, z = ((np.array(MIDDLE_MM) / HEAD_MM + 0.5) * side).astype(int)
    return int(x), int(y), int(z)


def leaks(skull: Mask, above_mm: float) -> bool:
    """Return whether air passes from the brain to the outside above a height, even at corners."""
    side = len(skull)
    upper = ~skull[:, :, height(side) > above_mm]
    labels, _ = label(upper, EVERYWHERE)
    x, y, _ = middle(side)
    inside = labels[x, y, int((height(side) > above_mm).sum() * 0.3)]
    assert inside > 0
    return bool(inside == labels[0, 0, 0])


def test_walls_are_those_of_a_skull(skull: np.ndarray) -> None:
    x, y, z = middle(SIDE)
    for ray in (skull[x, y, z:], skull[x, y:, z]):
        assert not ray[0]  # the brain
        wall = int(ray.sum()) * HEAD_MM / SIDE
        assert 3 <= wall <= 16
        assert (np.diff(ray.astype(int)) == 1).sum() == 1  # one wall
    volume = skull.sum() * (HEAD_MM / SIDE) ** 3 / 1000
    assert 300 < volume < 1100  # cm3; coarse voxels make walls thick


@pytest.mark.parametrize("seed", range(8))
def test_the_vault_is_closed_in_coarse_voxels(seed: int) -> None:
    head = Head.sample(np.random.default_rng(seed))
    skull = shapes.build_skull(replace(head, gaps=(), tilt=(0.0, 0.0, 0.0)), SIDE)
    assert not leaks(skull, head.cranium.anterior + 15)


def test_the_vault_is_closed_and_a_gap_opens_it(head: Head, fine: np.ndarray) -> None:
    above = head.cranium.anterior + 12
    assert not leaks(fine, above)
    whole = shapes.build_skull(head, SIDE)
    opened = shapes.build_skull(replace(head, gaps=(Gap((0.5, 0.5, 0.7071), 9.0, 1.0),)), SIDE)
    assert leaks(opened, above)
    assert not (opened & ~whole).any()
    area = (whole & ~opened).sum() * (HEAD_MM / SIDE) ** 3 / head.cranium.wall
    assert 0.5 * np.pi * 81 < area < 2.5 * np.pi * 81


def test_walls_of_two_voxels_are_closed(head: Head) -> None:
    side = 100
    thin = replace(head.cranium, wall=2.0, walls=(0.0,) * len(head.cranium.walls), thinnest=2.0)
    skull = shapes.build_skull(replace(head, cranium=thin), side)
    assert not leaks(skull, head.cranium.anterior + 12)
    x, y, z = middle(side)
    assert 1 <= skull[x, y, z:].sum() <= 3


def test_a_skull_is_one_component_off_the_faces_of_the_volume() -> None:
    for seed in range(4):
        skull = shapes.make_skull(np.random.default_rng(seed), 48)
        assert label(skull)[1] == 1
        for axis in range(3):
            ends = np.moveaxis(skull, axis, 0)[[0, -1]]
            assert not ends.any(), (seed, axis)


def test_the_frontal_sinus_is_between_two_tables(head: Head, fine: np.ndarray) -> None:
    labels, count = label(~fine)
    x, y, z = middle(FINE)
    sizes = np.bincount(labels.ravel())
    sizes[[0, labels[0, 0, 0], labels[x, y, z]]] = 0  # bone, outside, brain
    sinus = labels == sizes.argmax()
    assert count > 2
    volume = sinus.sum() * (HEAD_MM / FINE) ** 3 / 1000
    assert 0.4 < volume < 15  # cm3
    assert np.argwhere(sinus)[:, 1].mean() < 0.25 * FINE  # in front
    around = binary_dilation(sinus, EVERYWHERE) & ~sinus
    assert fine[around].mean() > 0.97
    # Through the sinus to the back: bone, air, bone, each of at least two voxels nearly everywhere.
    before = np.cumsum(fine, axis=1)
    front = np.where(sinus, before, FINE).min(axis=1)
    last = FINE - 1 - sinus[:, ::-1].argmax(axis=1)
    i, k = np.nonzero(sinus.any(axis=1))
    behind = [fine[x, last[x, z] + 1 :, z][:2].sum() for x, z in zip(i, k, strict=True)]
    assert (front[i, k] >= 2).mean() > 0.95
    assert (np.array(behind) == 2).mean() > 0.9


def test_the_orbits_are_open_to_the_front_and_the_spine_has_its_foramen(
    head: Head, fine: np.ndarray
) -> None:
    aside, y, z = head.face.center
    for sign in (-1, 1):
        at = (np.array([sign * aside, y + 4, z]) + MIDDLE_MM + HEAD_MM / 2) / HEAD_MM * FINE
        i, j, k = at.astype(int)
        assert not fine[i - 4 : i + 5, :j, k - 3 : k + 4].any()
        assert fine[i, j - 8 :, k].any()  # closed behind, by the wing of the sphenoid bone
        assert fine[i, j : j + 6, k:].any()  # and above
    x, _, bottom = middle(FINE)
    foramen = int((24 + MIDDLE_MM[1] + HEAD_MM / 2) / HEAD_MM * FINE)
    assert not fine[x, foramen, : bottom - 15].any()


def test_both_sides_differ_by_a_few_millimetres() -> None:
    for seed in range(4):
        head = replace(Head.sample(np.random.default_rng(seed)), gaps=(), tilt=(0.0, 0.0, 0.0))
        skull = shapes.build_skull(head, SIDE)
        vault = skull[:, :, height(SIDE) > 20].any(axis=2)
        # How far each side reaches from the midline, by y.
        steps = np.arange(1, SIDE // 2 + 1)[:, None] * HEAD_MM / SIDE
        left, right = (
            (half * steps).max(axis=0) for half in (vault[SIDE // 2 :], vault[SIDE // 2 - 1 :: -1])
        )
        difference = np.abs(left - right)[left > 40]
        assert difference.max() > 0
        assert np.median(difference) < 10


def test_the_scan_ends_at_its_cut(head: Head) -> None:
    skull = shapes.build_skull(replace(head, asymmetry_mm=0.0, cut=-60.0), SIDE)
    lowest = height(SIDE)[skull.any(axis=(0, 1))].min()
    assert -60 < lowest < -60 + HEAD_MM / SIDE


def test_the_lower_jaw_is_below_the_base(head: Head) -> None:
    with_jaw, without = (
        shapes.build_skull(replace(head, lower_jaw=jaw), SIDE) for jaw in (True, False)
    )
    added = np.argwhere(with_jaw & ~without)
    assert len(added) > 50
    assert height(SIDE)[added[:, 2].max()] < -35


def test_sutures_and_diploe_are_left_to_fine_voxels(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 90
    cranium = replace(head.cranium, wall=14.0, walls=(0.0,) * len(head.cranium.walls))
    plain = shapes.build_skull(replace(head, cranium=cranium), side)
    monkeypatch.setattr(shapes, "_FINE_MM", 3.0)
    detailed = shapes.build_skull(replace(head, cranium=cranium), side)
    assert not (detailed & ~plain).any()
    removed = plain & ~detailed
    outermost = removed & binary_dilation(~plain)
    for part in (outermost, removed & ~outermost):  # sutures, diploe
        assert 0.001 < part.sum() / plain.sum() < 0.2


def test_skulls_differ_and_follow_from_their_generator(skull: np.ndarray) -> None:
    again = shapes.make_skull(np.random.default_rng(1), SIDE)
    np.testing.assert_array_equal(skull, again)
    other = shapes.make_skull(np.random.default_rng(2), SIDE)
    assert (other ^ skull).sum() > 0.3 * skull.sum()


def test_a_head_is_the_same_in_all_voxels(head: Head, fine: np.ndarray) -> None:
    coarse = shapes.build_skull(head, SIDE)
    blocks = fine.reshape(SIDE, 2, SIDE, 2, SIDE, 2).any(axis=(1, 3, 5))
    assert (coarse & blocks).sum() > 0.85 * coarse.sum()


def test_some_heads_have_gaps_a_lower_jaw_or_no_sinus() -> None:
    heads = [Head.sample(np.random.default_rng(seed)) for seed in range(300)]
    assert 0.1 < np.mean([bool(head.gaps) for head in heads]) < 0.3
    assert 0.25 < np.mean([head.lower_jaw for head in heads]) < 0.55
    assert 0.05 < np.mean([head.cranium.sinus is None for head in heads]) < 0.3
    assert np.abs([head.tilt for head in heads]).max() < 20
