"""Batches padded to the same number of tokens, so that one CUDA graph serves all of them.

Every image keeps its sampled masks. Padding consists of separate sequences that no other sequence
attends to, and of regions that are excluded from the loss: results and gradients do not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from overt.nn.vit import PackedPatches
from overt.ops.attention.packing import Packing
from overt.recipes.hjepa.config import Settings, against_filling
from overt.recipes.hjepa.levels import Cells, GridPooling
from overt.recipes.hjepa.model import Layout
from overt.recipes.hjepa.predictor import Prediction

DEVIATIONS = 4.0  # of a batch above the mean that still fit; larger batches stay as they are
MULTIPLE = 64  # sizes that matrix products like


def with_shapes_settled(settings: Settings) -> Settings:
    """Return the settings with `data.masking.fixed_shapes=auto` resolved.

    Batches are padded on a CUDA device, for its graphs, if padding tokens do not affect the result.
    """
    masking = settings.data.masking
    if masking.fixed_shapes != "auto":
        return settings
    fixed = torch.cuda.is_available() and not against_filling(settings.model, settings.loss)
    data = replace(settings.data, masking=replace(masking, fixed_shapes=fixed))
    return replace(settings, data=data)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch."""

    visible: int  # patches of all contexts
    seen: int  # tokens of visible patches in the sequences of the predictor
    hidden: int  # patches to predict
    cells: tuple[int, ...]  # regions of each level above the first

    @classmethod
    def of(cls, layout: Layout) -> Sizes:
        assert isinstance(layout.pooling, GridPooling)
        hidden = len(layout.prediction.positions)
        return cls(
            len(layout.visible.patches),
            len(layout.prediction.rows) - hidden,
            hidden,
            tuple(len(level.size) for level in layout.pooling.levels[1:]),
        )

    def numbers(self) -> list[int]:
        return [self.visible, self.seen, self.hidden, *self.cells]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of the sizes of an image, from which those of a batch follow."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def over(cls, layouts: Sequence[Layout]) -> Spread:
        """Compute them from images, each laid out as a separate batch."""
        rows = np.array([Sizes.of(layout).numbers() for layout in layouts])
        return cls(rows.mean(0), rows.std(0))

    def of_batch(self, images: int) -> Sizes:
        """Return sizes into which nearly every batch of this many images fits."""
        most = images * self.mean + DEVIATIONS * math.sqrt(images) * self.deviation
        visible, seen, hidden, *cells = (math.ceil(count / MULTIPLE) * MULTIPLE for count in most)
        # One more cell, so that there is always one for padding tokens.
        return Sizes(visible, seen, hidden, tuple(number + 1 for number in cells))


def fill_up(layout: Layout, sizes: Sizes) -> Layout:
    """Return the batch padded to these sizes; unchanged if something does not fit."""
    current = Sizes.of(layout)
    missing = [
        padded - used for padded, used in zip(sizes.numbers(), current.numbers(), strict=True)
    ]
    visible, seen, hidden, *cells = missing
    if min(missing) < 0 or 0 in cells:
        return layout
    assert isinstance(layout.pooling, GridPooling)
    return replace(
        layout,
        visible=_more_patches(layout.visible, visible),
        prediction=_more_predictions(layout.prediction, current.visible, visible, seen, hidden),
        pooling=_more_cells(layout.pooling, [hidden, *cells]),
        filling=(visible, hidden, *cells),
    )


def _append(values: Tensor, count: int, first: int | None = None) -> Tensor:
    """Append zeros, or numbers counted up from `first`."""
    if first is None:
        return F.pad(values, (0, count))
    return torch.cat([values, torch.arange(first, first + count)])


def _more_sequences(packing: Packing, tokens: int) -> Packing:
    """Append as many sequences as `tokens` may ever need, of nearly equal length."""
    lengths = packing.offsets.diff().numpy()
    total = int(packing.offsets[-1]) + tokens  # the same for all batches, and so is the number:
    number = -(-total // packing.bound)
    more = np.full(number, tokens // number) + (np.arange(number) < tokens % number)
    return Packing.of([*lengths, *more], bound=packing.bound, longest=packing.bound)


def _more_patches(visible: PackedPatches, count: int) -> PackedPatches:
    tokens = visible.tokens
    return PackedPatches(
        rows=_append(visible.rows, count),
        packing=_more_sequences(visible.packing, count),
        patches=_append(visible.patches, count),
        tokens=None if tokens is None else _append(tokens, count, len(visible.rows)),
    )


def _more_predictions(
    prediction: Prediction, own_visible: int, visible: int, seen: int, hidden: int
) -> Prediction:
    rows, own_hidden = prediction.rows, len(prediction.positions)
    # Hidden patches are indexed after the visible ones, which are more numerous now.
    rows = torch.where(rows < own_visible, rows, rows + visible)
    first = own_visible + visible + own_hidden
    return Prediction(
        rows=_append(_append(rows, hidden, first), seen),
        packing=_more_sequences(prediction.packing, hidden + seen),
        hidden=_append(prediction.hidden, hidden, len(rows)),
        positions=_append(prediction.positions, hidden),
        targets=_append(prediction.targets, hidden),
    )


def _more_cells(pooling: GridPooling, counts: Sequence[int]) -> GridPooling:
    """Append this many cells on each level; the last one contains all padding tokens."""
    last = [len(level.size) + more - 1 for level, more in zip(pooling.levels, counts, strict=True)]
    levels = []
    for number, (level, more) in enumerate(zip(pooling.levels, counts, strict=True)):
        above = last[min(number + 1, len(last) - 1)]
        levels.append(
            Cells(
                of_token=_append(level.of_token, more, len(level.size))  # on level 0 each its own
                if number == 0
                else F.pad(level.of_token, (0, counts[0]), value=last[number]),
                size=F.pad(level.size, (0, more), value=1.0),
                parent=F.pad(level.parent, (0, more), value=above),
                valid=F.pad(level.valid, (0, more), value=False),
            )
        )
    return GridPooling(tuple(levels))
