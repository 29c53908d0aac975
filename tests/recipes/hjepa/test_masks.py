"""Masks: inside the grid, apart, large enough, reachable everywhere, and drawn from the seed."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.recipes.hjepa.masks import (
    BatchRule,
    MaskRule,
    OfficialRule,
    RandomRule,
    hierarchical_rule,
    ijepa_rule,
    make_block,
    multiblock_rule,
    patches_of,
    touches,
)

Rule = MaskRule | OfficialRule
sides = st.integers(3, 18)


def rules(grid: tuple[int, int]) -> list[Rule]:
    return [
        ijepa_rule(grid),
        multiblock_rule(grid),
        hierarchical_rule(grid, 0, 3, (0.15, 0.2)),
        hierarchical_rule(grid, 2, 3, (0.15, 0.2), progression="linear"),
        OfficialRule(grid, min_keep=2),
    ]


@settings(max_examples=40, deadline=None)
@given(down=sides, across=sides, seed=st.integers(0, 2**31), least=st.integers(1, 3))
def test_every_draw_is_inside_the_grid_and_leaves_a_context(
    down: int, across: int, seed: int, least: int
) -> None:
    for rule in rules((down, across)):
        rule = dataclasses.replace(rule, min_keep=least, num_contexts=2)
        contexts, targets = rule.draw(np.random.default_rng(seed))
        again, same = rule.draw(np.random.default_rng(seed))
        assert targets == same
        assert all(np.array_equal(a, b) for a, b in zip(contexts, again, strict=True))
        assert len(targets) == 4
        for top, left, height, width in targets:
            assert 0 <= top < top + height <= down
            assert 0 <= left < left + width <= across
        for context in contexts:
            assert np.array_equal(context, np.unique(context))
            assert 0 <= context.min() <= context.max() < down * across
            assert len(context) >= least


def test_on_a_usual_grid_the_context_never_sees_a_target() -> None:
    rng = np.random.default_rng(0)
    for rule in rules((14, 14)):
        for _ in range(50):
            (context,), targets = rule.draw(rng)
            hidden = patches_of(targets, rule.grid)
            assert not np.intersect1d(context, hidden).size or len(context) <= 2


def test_the_rest_is_all_but_the_targets_and_overlap_is_allowed_when_asked() -> None:
    rule = dataclasses.replace(multiblock_rule((8, 10)), context_is_rest=True)
    (context,), targets = rule.draw(np.random.default_rng(0))
    both = np.concatenate([context, patches_of(targets, (8, 10))])
    assert np.array_equal(np.sort(both), np.arange(80))
    rule = dataclasses.replace(rule, allow_overlap=True)
    (context,), _ = rule.draw(np.random.default_rng(0))
    assert len(context) == 80


def test_where_targets_leave_no_room_the_context_sees_some() -> None:
    rule = dataclasses.replace(
        ijepa_rule((4, 4), target_scale=(0.9, 1.0)), min_keep=6, context_is_rest=True
    )
    for seed in range(20):
        (context,), _ = rule.draw(np.random.default_rng(seed))
        assert len(context) >= 6


def test_every_place_is_as_likely_and_the_last_row_is_reached() -> None:
    """A block of 2 x 2 on 4 x 5: 3 x 4 places."""
    rule = MaskRule((4, 5), (0.2, 0.2), (1, 1), (1, 1), (1, 1), num_targets=1)
    rng = np.random.default_rng(0)
    draws = 6000
    corners = np.zeros((3, 4))
    for _ in range(draws):
        ((top, left, height, width),) = rule.draw_targets(rng)
        assert (height, width) == (2, 2)
        corners[top, left] += 1
    expected = draws / 12
    assert np.abs(corners - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize("grid", [(14, 28), (28, 14), (8, 32), (32, 8)])
@pytest.mark.parametrize("make", [ijepa_rule, multiblock_rule])
def test_oblong_images_have_blocks_of_the_area_that_was_asked_for(
    make: type[MaskRule], grid: tuple[int, int]
) -> None:
    rule = make(grid)
    rng = np.random.default_rng(0)
    for scale, aspect in (
        (rule.target_scale, rule.target_aspect),
        (rule.context_scale, rule.context_aspect),
    ):
        blocks = [make_block(draw, grid, scale, aspect) for draw in rng.random((400, 4)).tolist()]
        areas = np.array([height * width for _, _, height, width in blocks]) / (grid[0] * grid[1])
        assert areas.mean() == pytest.approx(sum(scale) / 2, rel=0.04)
        assert areas.max() <= 1


@settings(max_examples=200, deadline=None)
@given(
    side=st.integers(1, 18),
    scale=st.floats(0.05, 1.0),
    aspect=st.floats(0.5, 2.0),
    draw=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 4),
)
def test_the_width_of_a_square_images_block_comes_from_the_height_that_may_not_fit(
    side: int, scale: float, aspect: float, draw: tuple[float, float, float, float]
) -> None:
    """The published rule: both sides are cut to the grid, and neither makes up for the other."""
    height = round(math.sqrt(scale * side * side / aspect))
    width = round(height * aspect)
    expected = tuple(max(1, min(length, side)) for length in (height, width))
    top, left, *size = make_block(draw, (side, side), (scale, scale), (aspect, aspect))
    assert tuple(size) == expected
    assert 0 <= top <= side - size[0]
    assert 0 <= left <= side - size[1]


def test_targets_keep_apart_where_there_is_room() -> None:
    rule = dataclasses.replace(multiblock_rule((20, 30), target_scale=(0.02, 0.03)))
    rng = np.random.default_rng(0)
    overlapping = 0
    for _ in range(100):
        targets = rule.draw_targets(rng)
        overlapping += any(touches(block, targets[:n]) for n, block in enumerate(targets))
    assert overlapping == 0


@pytest.mark.parametrize(
    ("other", "expected"), [((2, 2, 1, 1), False), ((1, 1, 3, 3), True), ((0, 2, 2, 2), False)]
)
def test_blocks_touch_where_they_share_a_patch(
    other: tuple[int, int, int, int], expected: bool
) -> None:
    assert touches((0, 0, 2, 2), [other]) is expected


def test_a_sample_of_its_own_keeps_all_its_patches() -> None:
    """No list is cut to the shortest of a batch: rows are seen alike, but for the edge's effect."""
    rule, rng = ijepa_rule((14, 14)), np.random.default_rng(0)
    seen = np.zeros(196)
    for _ in range(1500):
        seen[rule.draw(rng)[0][0]] += 1
    rows = seen.reshape(14, 14).mean(1)
    torn = np.abs(rows - rows[::-1]) / rows
    assert torn.max() < 0.15  # I-JEPA's last row is seen a tenth as often as its first


@pytest.mark.parametrize("make", [ijepa_rule, OfficialRule])
def test_a_context_that_is_too_large_is_cut_at_random(make: type[Rule]) -> None:
    whole = make((14, 14))
    rule, seen = dataclasses.replace(whole, max_keep=50), np.zeros((2, 196))
    for seed in range(800):
        (context,), targets = rule.draw(np.random.default_rng(seed))
        (everything,), same = whole.draw(np.random.default_rng(seed))
        assert targets == same
        assert np.array_equal(context, np.unique(context))
        assert len(context) == min(len(everything), 50)
        assert np.isin(context, everything).all()
        seen[0, context] += 1 / len(context)
        seen[1, everything] += 1 / len(everything)
    rows = seen.reshape(2, 14, 14).sum(2)[:, :13]
    assert (np.abs(rows[0] - rows[1]) < 0.15 * rows[1]).all()  # first-k would lose the last rows


# --- the official collator, by its rule and batch by batch ---------------------------------------


def official_size(draw: float, side: int, scale: tuple[float, float], low: float, high: float):
    area = int(side * side * (scale[0] + draw * (scale[1] - scale[0])))
    aspect = low + draw * (high - low)
    height, width = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
    return min(height, side - 1), min(width, side - 1)


def official_batch(side: int, images: int, draws: tuple[float, float], rng: np.random.Generator):
    """Contexts (images, side, side) bool of one batch, all cut to the first of the shortest."""
    sizes = (
        official_size(draws[0], side, (0.15, 0.2), 0.75, 1.5),
        official_size(draws[1], side, (0.85, 1.0), 1.0, 1.0),
    )

    def block(size: tuple[int, int]) -> np.ndarray:
        seen = np.zeros((side, side), bool)
        top, left = (int(rng.integers(0, side - length)) for length in size)
        seen[top : top + size[0], left : left + size[1]] = True
        return seen

    contexts = []
    for _ in range(images):
        hidden = np.any([block(sizes[0]) for _ in range(4)], axis=0)
        kept = np.flatnonzero(block(sizes[1]) & ~hidden)
        while len(kept) <= 10:
            kept = np.flatnonzero(block(sizes[1]) & ~hidden)
        contexts.append(kept)
    shortest = min(map(len, contexts))
    seen = np.zeros((images, side * side), bool)
    for number, kept in enumerate(contexts):
        seen[number, kept[:shortest]] = True
    return seen.reshape(-1, side, side)


def neighbors(seen: np.ndarray) -> float:
    """Visible patches beside a visible patch, on average."""
    pairs = (seen[:, 1:] & seen[:, :-1]).sum() + (seen[:, :, 1:] & seen[:, :, :-1]).sum()
    return float(2 * pairs / seen.sum())


@pytest.mark.parametrize(("side", "patches", "beside"), [(14, 51, 2.91), (16, 69.5, 3.07)])
def test_contexts_have_the_distribution_of_the_official_collator(
    side: int, patches: float, beside: float
) -> None:
    rng, batches = np.random.default_rng(0), 32
    # All sizes alike often, so that 32 batches tell the mean of very many.
    first, second = ((rng.permutation(batches) + 0.5) / batches for _ in range(2))
    pairs = zip(first, second, strict=True)
    official = np.concatenate([official_batch(side, 128, pair, rng) for pair in pairs])
    rule = BatchRule((side, side))
    ours = np.zeros((2500, side * side), bool)
    for number in range(len(ours)):
        ours[number, rule.draw(np.random.default_rng(number))[0][0]] = True
    ours = ours.reshape(-1, side, side)
    for seen in (official, ours):
        assert seen.sum((1, 2)).mean() == pytest.approx(patches, abs=1.5)
        assert neighbors(seen) == pytest.approx(beside, abs=0.06)
        assert not seen[:, -1].any()  # no block reaches the last row
    assert ours.sum((1, 2)).std() == pytest.approx(official.sum((1, 2)).std(), abs=1.5)
    assert np.abs(official.mean(0) - ours.mean(0)).max() < 0.05
    # Drawn for itself and cut at random, a context is a scatter, and seen elsewhere.
    own = np.zeros((600, side * side), bool)
    apart = dataclasses.replace(ijepa_rule((side, side)), max_keep=round(patches), min_keep=10)
    for number in range(len(own)):
        own[number, apart.draw(np.random.default_rng(number))[0][0]] = True
    own = own.reshape(-1, side, side)
    assert neighbors(own) < beside - 0.7
    assert np.abs(official.mean(0) - own.mean(0)).max() > 0.12


@pytest.mark.parametrize(("rule", "patches"), [(BatchRule, 12), (ijepa_rule, 30)])
def test_on_the_grid_of_cifar_official_contexts_are_smaller(rule: type[Rule], patches: int) -> None:
    contexts = [rule((8, 8)).draw(np.random.default_rng(seed))[0][0] for seed in range(200)]
    assert np.mean([len(context) for context in contexts]) == pytest.approx(patches, abs=1.5)


def test_a_batch_of_one_cuts_nothing() -> None:
    rule = BatchRule((14, 14), batch=1)
    contexts = [rule.draw(np.random.default_rng(number))[0][0] for number in range(300)]
    assert np.mean([len(kept) for kept in contexts]) == pytest.approx(81.5, abs=3)  # as published


def test_random_masks_hide_their_fraction() -> None:
    rule = RandomRule((8, 8), (0.75, 0.75))
    (context,), (hidden,) = rule.draw_sets(np.random.default_rng(0))
    assert (len(context), len(hidden)) == (16, 48)
    assert sorted([*context, *hidden]) == list(range(64))


@pytest.mark.parametrize(
    ("progression", "scales"),
    [
        ("geometric", [(0.05, 0.15), (0.1, 0.3), (0.2, 0.6), (0.4, 0.95)]),
        ("linear", [(0.05, 0.15), (0.1, 0.3), (0.15, 0.45), (0.2, 0.6)]),
    ],
)
def test_blocks_grow_with_the_level(progression: str, scales: list[tuple[float, float]]) -> None:
    grid, rng = (24, 24), np.random.default_rng(0)
    for level, (low, high) in enumerate(scales):
        rule = hierarchical_rule(grid, level, len(scales), progression=progression)
        assert rule.target_scale == pytest.approx((low, high))
        # The first target has nothing to avoid, so its area is the one drawn, but for rounding.
        blocks = [rule.draw(rng)[1][0] for _ in range(400)]
        areas = np.array([height * width for _, _, height, width in blocks]) / (24 * 24)
        assert areas.mean() == pytest.approx((low + high) / 2, rel=0.05)
