"""Sample which patches an encoder sees and which are to be predicted, image by image.

A block is (top, left, height, width) in patches. Nothing is truncated to the shortest list of a
batch: every sample keeps its own masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Grid = tuple[int, int]  # patches (down, across)
Block = tuple[int, int, int, int]
Range = tuple[float, float]

CONTEXT_TRIES = 20  # places of the context block before a target may be seen


@dataclass(frozen=True)
class MaskRule:
    """Mask parameters of a sample; the three samplers are values of these."""

    grid: Grid
    target_scale: Range  # area of a target block over that of the image
    target_aspect: Range  # width over height
    context_scale: Range
    context_aspect: Range
    num_targets: int = 4
    num_contexts: int = 1
    separate_tries: int = 10  # draws of a target block that touches no earlier one; 1: may touch
    fallback: Grid = (1, 1)  # block where all of these failed
    context_is_rest: bool = False  # the context is everything but the targets
    min_keep: int = 1  # patches that the context keeps at least
    max_keep: int | None = None  # and at most: a choice at random
    allow_overlap: bool = False  # the context may see the targets

    def draw(self, rng: np.random.Generator) -> tuple[list[np.ndarray], list[Block]]:
        """Return sorted patch indices of each context of one sample, and its target blocks."""
        targets = self.draw_targets(rng)
        return [self.draw_context(targets, rng) for _ in range(self.num_contexts)], targets

    def draw_targets(self, rng: np.random.Generator) -> list[Block]:
        """Sample the target blocks, disjoint if a few attempts succeed."""
        # All random numbers at once, blocks only as needed: both dominate the cost.
        draws = rng.random((self.num_targets, self.separate_tries, 4)).tolist()
        chosen: list[Block] = []
        for tries in draws:
            for draw in tries:
                block = make_block(draw, self.grid, self.target_scale, self.target_aspect)
                if len(tries) == 1 or not touches(block, chosen):
                    break
            else:
                block = random_block(self.fallback, self.grid, rng)
            chosen.append(block)
        return chosen

    def draw_context(self, targets: Sequence[Block], rng: np.random.Generator) -> np.ndarray:
        """Return at least `min_keep` patches of a context block outside the targets."""
        hidden = [] if self.allow_overlap else list(targets)

        def block() -> Block:
            if self.context_is_rest:
                return 0, 0, *self.grid
            draw = rng.random(4).tolist()
            return make_block(draw, self.grid, self.context_scale, self.context_aspect)

        return some_of(keep_enough(block, hidden, self.grid, self.min_keep), self.max_keep, rng)


def keep_enough(
    draw: Callable[[], Block], hidden: list[Block], grid: Grid, least: int
) -> np.ndarray:
    """Return the visible patches of a random block, resampled until there are enough.

    On a small grid there may be no such position: then hidden blocks are revealed one by one.
    """
    while True:
        for _ in range(CONTEXT_TRIES):
            visible = np.zeros(grid, dtype=bool)
            visible[span(draw())] = True
            for block in hidden:
                visible[span(block)] = False
            patch_indices = np.flatnonzero(visible)
            if len(patch_indices) >= least or not hidden:
                return patch_indices
        hidden.pop()


def some_of(patches: np.ndarray, most: int | None, rng: np.random.Generator) -> np.ndarray:
    """Return up to this many of the patches, sorted, chosen uniformly."""
    if most is None or len(patches) <= most:
        return patches
    return np.sort(rng.choice(patches, most, replace=False, shuffle=False))


def multiblock_rule(
    grid: Grid,
    target_scale: Range = (0.15, 0.2),
    aspect: Range = (0.75, 1.5),
    context_scale: Range = (0.85, 1.0),
    num_targets: int = 4,
) -> MaskRule:
    """H-JEPA's multi-block masks: disjoint targets where possible, one large context block."""
    return MaskRule(
        grid, target_scale, aspect, context_scale, aspect, num_targets, fallback=_shrunk(grid, 4)
    )


def hierarchical_rule(
    grid: Grid,
    level: int,
    num_levels: int,
    base_scale: Range = (0.05, 0.15),
    aspect: Range = (0.75, 1.5),
    num_targets: int = 4,
    progression: str = "geometric",
) -> MaskRule:
    """H-JEPA's hierarchical masks: targets and context grow with the level."""
    factor = 2**level if progression == "geometric" else 1 + level
    low, high = (min(0.95, end * factor) for end in base_scale)
    if level == 0:
        aspect = (max(aspect[0], 0.85), min(aspect[1], 1.15))
    fraction = 0.6 + 0.3 * level / max(1, num_levels - 1)
    context = (min(0.95, fraction), min(1.0, fraction + 0.15))
    fallback = _shrunk(grid, level + 2)
    return MaskRule(grid, (low, high), aspect, context, aspect, num_targets, fallback=fallback)


def ijepa_rule(
    grid: Grid,
    target_scale: Range = (0.15, 0.2),
    aspect: Range = (0.75, 1.5),
    context_scale: Range = (0.85, 1.0),
    num_targets: int = 4,
) -> MaskRule:
    """I-JEPA's masks with separately sampled sizes: targets may touch, square context."""
    # I-JEPA's aspect is height over width.
    wide = (1 / aspect[1], 1 / aspect[0])
    return MaskRule(
        grid, target_scale, wide, context_scale, (1.0, 1.0), num_targets, separate_tries=1
    )


def make_block(draw: Sequence[float], grid: Grid, scale: Range, aspect: Range) -> Block:
    """Return a block from four numbers in [0, 1): area, aspect ratio and position.

    Every position where it fits is equally likely.
    """
    down, across = grid
    size, shape, y, x = draw
    area = (scale[0] + size * (scale[1] - scale[0])) * down * across
    ratio = aspect[0] + shape * (aspect[1] - aspect[0])
    # Without min() and max(), which would take longer than everything else.
    height = round(math.sqrt(area / ratio))
    if down != across and (height > down or height * ratio > across):
        # In an oblong image the side that fits compensates for the other; square images follow the
        # published rule, which truncates.
        height = down if height > down else round(area / across)
        ratio = area / height**2
    width = round(height * ratio)  # of the height before it is cut, as published
    height = 1 if height < 1 else down if height > down else height
    width = 1 if width < 1 else across if width > across else width
    return int(y * (down - height + 1)), int(x * (across - width + 1)), height, width


def random_block(size: Grid, grid: Grid, rng: np.random.Generator) -> Block:
    """Return a block of this size at a random position of the grid."""
    top, left = (
        int(rng.integers(extent - length + 1)) for extent, length in zip(grid, size, strict=True)
    )
    return top, left, size[0], size[1]


def touches(block: Block, others: Sequence[Block]) -> bool:
    """Return whether a block shares a patch with any of the others."""
    top, left, height, width = block
    bottom, right = top + height, left + width
    for above, before, down, across in others:
        if above < bottom and top < above + down and before < right and left < before + across:
            return True
    return False


def span(block: Block) -> tuple[slice, slice]:
    """Return the block as an index of the grid."""
    top, left, height, width = block
    return slice(top, top + height), slice(left, left + width)


def patches_of(blocks: Sequence[Block], grid: Grid) -> np.ndarray:
    """Return sorted indices of the patches in any of the blocks."""
    covered = np.zeros(grid, dtype=bool)
    for block in blocks:
        covered[span(block)] = True
    return np.flatnonzero(covered)


def _shrunk(grid: Grid, divisor: int) -> Grid:
    return max(1, grid[0] // divisor), max(1, grid[1] // divisor)


@dataclass(frozen=True)
class OfficialRule:
    """I-JEPA's own sampler with its habits: one draw for area and aspect, no block in the last
    row and column. There a batch shares its sizes; here every sample draws a seed.
    """

    grid: Grid
    target_scale: Range = (0.15, 0.2)
    aspect: Range = (0.75, 1.5)  # height over width
    context_scale: Range = (0.85, 1.0)
    num_targets: int = 4
    num_contexts: int = 1
    min_keep: int = 10  # the context keeps more than these
    allow_overlap: bool = False
    max_keep: int | None = None

    def draw(self, rng: np.random.Generator) -> tuple[list[np.ndarray], list[Block]]:
        """Sorted patch numbers of each context of one sample, and its target blocks."""
        return self.draw_blocks(*self.sizes(int(rng.integers(2**31))), rng)

    def sizes(self, seed: int) -> tuple[Grid, Grid]:
        """Return (height, width) of target and context blocks for I-JEPA's counted seed."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        sizes = []
        for scale, aspect in ((self.target_scale, self.aspect), (self.context_scale, (1.0, 1.0))):
            draw = torch.rand(1, generator=generator).item()
            sizes.append(block_size(draw, self.grid, scale, aspect))
        return sizes[0], sizes[1]

    def draw_blocks(
        self, target: Grid, context: Grid, rng: np.random.Generator
    ) -> tuple[list[np.ndarray], list[Block]]:
        """Sample contexts and targets with blocks of these sizes."""
        inner = (self.grid[0] - 1, self.grid[1] - 1)
        targets = [random_block(target, inner, rng) for _ in range(self.num_targets)]
        contexts = []
        for _ in range(self.num_contexts):
            hidden = [] if self.allow_overlap else list(targets)
            patch_indices = keep_enough(
                lambda: random_block(context, inner, rng), hidden, self.grid, self.min_keep + 1
            )
            contexts.append(some_of(patch_indices, self.max_keep, rng))
        return contexts, targets


@dataclass(frozen=True)
class BatchRule(OfficialRule):
    """I-JEPA's masks as its collator computes them for a batch, sampled image by image.

    There all images of a rank's batch have blocks of the same sizes, and every context is truncated
    to the length of the shortest context of the batch. Other images affect one only through that
    shortest length: it is sampled from its distribution, so every image has the official
    distribution and still depends only on its own generator.
    """

    batch: int = 128  # images whose contexts are cut to the shortest

    def draw(self, rng: np.random.Generator) -> tuple[list[np.ndarray], list[Block]]:
        """Sorted patch numbers of each context of one sample, and its target blocks."""
        first, second, third = rng.random(3).tolist()
        target = block_size(first, self.grid, self.target_scale, self.aspect)
        context = block_size(second, self.grid, self.context_scale, (1.0, 1.0))
        contexts, targets = self.draw_blocks(target, context, rng)
        if self.batch == 1:
            return contexts, targets
        lengths = context_lengths(self, target, context)
        # P(shortest of n lengths > x) is the n-th power of P(one length > x).
        below = 1 - (1 - third) ** (1 / (self.batch - 1))
        shortest = min(int(lengths[int(below * len(lengths))]), *map(len, contexts))
        return [patch_indices[:shortest] for patch_indices in contexts], targets


LENGTHS_DRAWN = 8192


@lru_cache(maxsize=256)
def context_lengths(rule: BatchRule, target: Grid, context: Grid) -> np.ndarray:
    """Return context sizes with blocks of these sizes, sorted; the same in every process."""
    rng = np.random.default_rng(0)
    down, across = rule.grid

    def inside(size: Grid, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and columns that blocks cover, (images, count, side)."""
        covered = []
        for side, extent in ((size[0], down), (size[1], across)):
            begins = rng.integers(0, extent - side, (LENGTHS_DRAWN, count, 1))
            patches = np.arange(extent)
            covered.append((patches >= begins) & (patches < begins + side))
        return covered[0], covered[1]

    rows, columns = inside(context, 1)
    visible = rows[:, 0, :, None] & columns[:, 0, None]  # (images, down, across)
    if not rule.allow_overlap:
        rows, columns = inside(target, rule.num_targets)
        for number in range(rule.num_targets):
            visible &= ~(rows[:, number, :, None] & columns[:, number, None])
    lengths = np.sort(visible.sum((1, 2)))
    long_enough = lengths[lengths > rule.min_keep]
    return long_enough if len(long_enough) else np.array([down * across])


def block_size(draw: float, grid: Grid, scale: Range, aspect: Range) -> Grid:
    """Return height and width of I-JEPA's block from one number in [0, 1)."""
    area = int(math.prod(grid) * (scale[0] + draw * (scale[1] - scale[0])))
    ratio = aspect[0] + draw * (aspect[1] - aspect[0])
    height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    return max(1, min(height, grid[0] - 1)), max(1, min(width, grid[1] - 1))


@dataclass(frozen=True)
class RandomRule:
    """MAE's masks: a fraction of the patches is masked, the rest is the context."""

    grid: Grid
    hidden: Range = (0.75, 0.75)

    def draw_sets(self, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return sorted patch indices of the context, and of the patches to predict."""
        patches = math.prod(self.grid)
        count = round(patches * rng.uniform(*self.hidden))
        count = min(max(count, 1), patches - 1)
        order = rng.permutation(patches)
        return [np.sort(order[count:])], [np.sort(order[:count])]
